# `make demo` and `make test` on a machine that has Python 3.10 to 3.14 and pip; no GPU is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint lit pytest clean

demo: $(INSTALLED)
	$(BIN)/python -m fa4c.demo

test: lint lit pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .

lit: $(INSTALLED)
	$(BIN)/lit -sv test

pytest: $(INSTALLED) | lit
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal --durations=15

# torch first and alone: once it is there, no other requirement replaces it by a CUDA build. --no-compile: most of what is installed is
# never imported, and Python compiles what is.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,sass]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build *.egg-info
