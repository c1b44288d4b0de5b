"""What cannot run is refused with its line: unknown names, bad operands, malformed text, parameters that do not fit."""

import pytest
from emulator_kernels import ptx

from fa4c.runtime.emulator import EmulatorError, launch


@pytest.mark.parametrize(
    "line,what",
    [
        ("frobnicate.b32 %r4, %r5;", "frobnicate"),
        ("add.u32 %r4, %r999, 1;", "%r999"),
        ("bra NOWHERE;", "NOWHERE"),
        ("mov.u32 %r4, %nosuch;", "nosuch"),
        ("tcgen05.cp.cta_group::1.128x256b [%r4], %rd5;", "tcgen05.cp"),
        ("add.u32 %r4 %r5;", "%r4 %r5"),
        ("add.u32 %r4;", "add.u32"),
        ("tcgen05.mma.cta_group::1.kind::tf32 [%r4], %rd1, %rd2, %r5, %p0;", "kind::tf32"),
        ("L: add.u32 %r4, %r4, 1;\nbra L;", "20000"),
        ("ld.global.u32 %r4, [%rd9];", "out of bounds"),
        ("ld.shared.u32 %r4, [%r1+99999];", "out of bounds"),
    ],
)
def test_bad_input_is_located(line, what):
    text = ptx(line)
    with pytest.raises(EmulatorError) as e:
        launch(text, "k", 1, 32, (1, 1, 1), 1024, [], max_steps=20000)
    assert what in str(e.value) and e.value.line in (16, 17), str(e.value)


@pytest.mark.parametrize(
    "text",
    ["", "hello", ".version 8.8\n.target sm_90a\n.entry k() { add.u32", ".version 8.8\n.target sm_90a\n.entry k( .param .u99 x ) { ret; }"],
)
def test_malformed_text(text):
    with pytest.raises(EmulatorError):
        launch(text, "k", 1, 32, (1, 1, 1), 0, [])


def test_parameters_are_checked():
    text = ptx("", [".u64 a", ".u32 b"])
    for params, what in [([], "takes 2 parameters"), ([bytes(8), bytes(8)], "takes 4 bytes"), ([bytes(8), object()], "cannot pass")]:
        with pytest.raises(EmulatorError, match=what):
            launch(text, "k", 1, 32, (1, 1, 1), 0, params)
