"""A GPU that is none: results come from the reference, times from the label of the candidate. And a folder as `prepare` writes it."""

import inspect
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "runtime"))

import runtime_samples

from fa4c.runtime import artifact
from fa4c.tune.data import PLAN, SCHEMA, write_json


class Bench:
    """`FAKE_TIMES`: {"label": milliseconds, or [milliseconds by call]}; "hang" and "die" do so when timed."""

    device, backend = "cpu", "reference"
    small = {"b": 1, "hq": 2, "hkv": 1, "m": 9, "n": 13}

    def __init__(self, target):
        self.times, self.calls = json.loads(os.environ.get("FAKE_TIMES", "{}")), {}

    def time(self, call, calls):
        label = pathlib.Path(inspect.getclosurevars(call).nonlocals["artifact"].path).stem
        value = self.times.get(label, 1.0)
        if value == "hang":
            time.sleep(60)
        if value == "die":
            os._exit(3)
        self.calls[label] = self.calls.get(label, -1) + 1
        return value if isinstance(value, (int, float)) else value[self.calls[label] % len(value)]

    def heat(self, seconds):
        pass

    def synchronize(self):
        pass

    def clock(self):
        return "1800"

    def machine(self):
        return {"gpu": "Fake 100", "driver": "1.2", "date": "2026-11-29T00:00:00Z"}


SIZES = [dict(b=1, hq=2, hkv=1, m=n, n=n) for n in (16, 24, 40)]
FACTS = {
    "row_tiles": [64],
    "column_tiles": [64, 64],
    "accumulators": [64],
    "live_halves": 3,
    "softmaxes": 1,
    "special": 0,
    "operations": 1,
    "mask": "up to a key",
}


def folder(path: pathlib.Path, candidates: dict, sizes=SIZES, target="sm_90a") -> pathlib.Path:
    """A plan with these candidates: label -> configuration, or None; a label with "wrong" in it computes attention without a mask."""
    entries = []
    for label, configuration in candidates.items():
        manifest = runtime_samples.manifest(runtime_samples.attention_tree(mask=None if "wrong" in label else runtime_samples.CAUSAL))
        manifest["target"] = target
        artifact.write(path / f"{label}.fa4c", manifest, runtime_samples.MEMBERS)
        entries.append(
            {
                "label": label,
                "configuration": configuration,
                "set": [],
                "disabled": [],
                "predicted_clk": [1, 2, 3],
                "artifact": f"{label}.fa4c",
                "registers": 168,
                "smem_bytes": 1024,
            }
        )
    problem = {
        "name": "sample",
        "file": "sample.mlir",
        "dtype": "bf16",
        "head_dims": [64, 64],
        "problem": FACTS,
        "sizes": sizes,
        "candidates": entries,
        "dropped": [{"label": "192x256x2", "why": "spills 8 bytes a thread"}],
    }
    write_json(path / "plan.json", {"schema": SCHEMA, "kind": PLAN, "target": target, "dsl": "4.8.1", "problems": [problem]})
    return path


def shape(block_m, block_n, buffers=2, **more) -> dict:
    return {"block_m": block_m, "block_n": block_n, "buffers": buffers, **more}
