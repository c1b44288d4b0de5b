"""attn-early-factors by execution: gradients stay what torch.autograd says, also where a mask hides what an infinite factor reads."""

import numpy as np
import pytest
from attn_autograd import CONTEXT, check, function_of, make_inputs, tree_of
from attn_program import Program

from fa4c.ir import interpret_attn


def test_gradients_are_those_of_autograd():
    """1 - t^2 is -inf where the mask hides t, and is limited there; rows that see few keys, and all of them."""
    p = Program()
    p.qkv()
    P, lse = p.softmax(p.causal(p.map([p.scaled(p.scores())], lambda e, x: e.op("tanh", x))))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    before = str(function_of(p.text(), "attn-derive-backward,attn-exp-to-exp2")[0])
    for sizes in (dict(b=2, hq=4, hkv=2, m=7, n=5), dict(b=1, hq=2, hkv=2, m=3, n=9)):
        text = check(p.text(), sizes, then=",attn-exp-to-exp2,attn-early-factors")
        assert text.count("arith.maximumf") == 1 and text.count('"attn.map"') == before.count('"attn.map"') + 1


@pytest.mark.parametrize("hidden", [True, False])
def test_two_limited_factors_meet_the_zero_one_by_one(hidden):
    """s s exp(s) where s is hidden: the limit squared is infinite in f32, and 0 times that no number. Where nothing is, no limit."""
    p = Program()
    p.qkv()
    s = p.scores()
    e = p.map([p.causal(s) if hidden else s], lambda e, x: e.op("exp", x))
    p.result("o", p.output(p.map([s, p.scores(), e], lambda e, x, y, z: e.op("mul", e.op("mul", e.op("mul", x, x), z), y))))
    tree = tree_of(p.text())
    inputs = make_inputs(tree, dict(b=1, hq=1, hkv=1, m=3, n=5))
    module, function = function_of(p.text(), "attn-early-factors")
    assert ("arith.maximumf" in str(module)) == hidden and str(module).count('"attn.map"') == 3
    with CONTEXT:
        assert np.isfinite(interpret_attn.run(function, inputs, "kernel")["o"]).all()
