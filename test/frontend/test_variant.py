"""The standard variants: trees without MLIR, text from trees, and the way back."""

import glob
import itertools
import json
import os
import subprocess
import sys

import pytest

from fa4c.frontend.to_mlir import to_mlir
from fa4c.frontend.variant import standard
from fa4c.ir.attn_signature import verify_module
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.semantics import from_function

CONTEXT = new_context()
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
EXAMPLES = sorted(glob.glob(os.path.join(ROOT, "examples", "*.mlir")))

OPTIONS = [
    dict(zip(("causal", "align", "window", "softcap", "scale", "dtype", "d", "dv", "layout"), values, strict=True))
    for values in itertools.product(
        (False, True),
        ("top_left", "bottom_right"),
        (None, (3, None), (None, 5), (7, 0), (0, 2)),
        (None, 30.0),
        (None, 1.0, 0.3),
        ("bf16", "fp16"),
        (64,),
        (None, 40),
        ("bshd",),
    )
] + [{"layout": "bhsd"}, {"d": 192, "dv": 128}, {"d": 8}, {}]


def read(text: str, name: str = "text.mlir") -> dict:
    module = parse_module(text, name, CONTEXT)
    verify_module(module)
    return from_function(module.body.operations[0])


def test_text_gives_the_tree_back():
    for options in OPTIONS:
        tree = standard(**options)
        assert read(to_mlir(tree)) == tree, options
        assert json.loads(json.dumps(tree, allow_nan=False)) == tree


@pytest.mark.parametrize("path", [*EXAMPLES, os.path.join(ROOT, "test", "ir", "inputs", "attn_every_op.mlir")], ids=os.path.basename)
def test_trees_of_files_survive_text(path):
    with open(path, encoding="utf-8") as file:
        tree = read(file.read(), path)
    assert read(to_mlir(tree)) == tree
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree


def test_the_standard_variant_is_the_example():
    """One cache entry, whichever way the variant came."""
    for name, options in (("causal", {"causal": True}), ("full", {}), ("softcap", {"causal": True, "softcap": 30.0})):
        with open(os.path.join(ROOT, "examples", name + ".mlir"), encoding="utf-8") as file:
            tree = read(file.read())
        assert json.dumps(tree | {"name": ""}) == json.dumps(standard(**options) | {"name": ""})


def test_different_variants_have_different_trees():
    trees = {json.dumps(standard(**options)) for options in OPTIONS}
    # Without a mask the alignment is no difference; (None, 5), (0, 2) under causal end at 0; the last ones repeat none.
    same = sum(1 for o in OPTIONS if not o.get("causal") and o.get("window", None) is None and o.get("align") == "bottom_right")
    causal_again = sum(1 for o in OPTIONS if o.get("causal") and o.get("window") == (None, 5))
    assert len(trees) == len(OPTIONS) - same - causal_again


def test_the_window_counts_inclusive_distances():
    text = to_mlir(standard(window=(3, 5)))
    assert "arith.constant 3 : index" in text and "arith.constant 5 : index" in text
    assert "arith.cmpi sge" in text and "arith.cmpi sle" in text
    assert to_mlir(standard(causal=True, window=(3, 5))) == to_mlir(standard(causal=True, window=(3, 0)))
    assert '"attn.mask"' not in to_mlir(standard(window=(None, None)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"align": "left"}, "align is 'top_left' or 'bottom_right', not 'left'"),
        ({"dtype": "f32"}, "dtype is one of bf16, fp16"),
        ({"d": 0}, "head dims are positive"),
        ({"softcap": 0.0}, "softcap is positive"),
        ({"layout": "sbhd"}, "layout is"),
        ({"window": (1, 2, 3)}, "window is"),
    ],
)
def test_values_that_no_variant_has(options, message):
    with pytest.raises(ValueError, match=message):
        standard(**options)


def test_neither_mlir_nor_torch_is_imported():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fa4c.frontend.variant import standard\nfrom fa4c.frontend.to_mlir import to_mlir\n"
        "to_mlir(standard(causal=True))\n"
        "assert not {'torch', 'torch_mlir', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, ROOT], check=True)
