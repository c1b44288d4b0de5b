"""attn-early-factors by execution: gradients stay what torch.autograd says, also where a mask hides what an infinite factor reads."""

from attn_autograd import check, function_of
from attn_program import Program


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
