"""--strict: what the ISA asks for and released kernels do without is a warning there, and silent by default."""

import numpy as np
import pytest
from emulator_kernels import CASES, line_of, ptx, wait
from test_faults import both, drop, put

from fa4c.runtime.emulator import Buffer, EmulatorError, launch

READ_THEN_LOAD = ptx(
    f"""
ld.param.u64 %rd0, [src];
setp.ne.u32 %p0, %r0, 0;
@%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1;
I: bar.sync 0;
shl.b32 %r4, %r0, 2; add.u32 %r5, %r1, %r4;
st.shared.u32 [%r5+128], %r0;
fence.proxy.async.shared::cta;
bar.sync 0;
ld.shared.u32 %r6, [%r5+128]; // @read
bar.sync 0;
@%p0 bra J;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 128, [%r1]; // @load
J: {wait("%r1", "0")}
""",
    [".u64 src"],
)
REGISTERS = ptx("""
setp.lt.u32 %p0, %r2, 2;
@%p0 bra A;
setmaxnreg.dec.sync.aligned.u32 24; // @low
bra E;
A: setmaxnreg.dec.sync.aligned.u32 40; // @high
E:""")


def case(name, edit=lambda t: t):
    return lambda **o: (CASES[name].run(edit(CASES[name].text), **o)[0], edit(CASES[name].text))


def text(source, block, params):
    return lambda **o: (launch(source, "k", 1, block, (1, 1, 1), 1024, params(), **o), source)


EQUAL = ptx("""
ld.param.u64 %rd0, [out];
mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1;
st.global.u32 [%rd1], %r0; // @store
""", [".u64 out"])  # fmt: skip


STRICT = {
    "two CTAs store equal values": (
        lambda **o: (launch(EQUAL, "k", 2, 32, (1, 1, 1), 0, [Buffer(np.zeros(32, np.uint32))], **o), EQUAL),
        "same-value",
        "store",
    ),
    "a tcgen05.ld result without wait::ld": (case("tcgen", drop("waitld")), "tcgen05-wait", "ldS"),
    "no tcgen05.fence after a barrier": (case("tcgen"), "tcgen05-fence", "mma0"),
    "MMAs of different accumulators in issue order": (
        case("tcgen", both(put("mmaS2", "tcgen05.mma.cta_group::1.kind::f16 [%r6], %rd3, %rd4, %r11, %p1;"))),
        "tcgen05-order",
        "mmaS2",
    ),
    "generic read, then an asynchronous write": (text(READ_THEN_LOAD, 32, lambda: [Buffer(np.zeros(32, np.uint32))]), "proxy-race", "load"),
    "a CTA ends while its TMA store may read": (case("tma", drop("drain", "reuse")), "exit-before-copy", "store"),
    "unequal setmaxnreg": (text(REGISTERS, 128, list), "setmaxnreg", "low"),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_warns_where_the_default_accepts(name):
    run, cls, marker = STRICT[name]
    report, source = run(strict=True)
    assert report.ok, report.text()
    found = [h for h in report.hazards if h.cls == cls and h.severity == "warning"]
    assert found and any(line_of(source, marker) in h.lines for h in found), report.text()
    report, _ = run()
    assert not report.hazards, report.text()


def test_equal_values_of_different_instructions_are_a_race():
    text = EQUAL.replace("st.global.u32 [%rd1], %r0; // @store", """mov.u32 %r4, %ctaid.x; setp.eq.u32 %p0, %r4, 0;
@%p0 st.global.u32 [%rd1], 0;
@!%p0 st.global.u32 [%rd1], 0;""")  # fmt: skip
    report = launch(text, "k", 2, 32, (1, 1, 1), 0, [Buffer(np.zeros(32, np.uint32))])
    assert {h.cls for h in report.errors} == {"race"}, report.text()


def test_illegal_register_count():
    with pytest.raises(EmulatorError, match="multiple of 8"):
        launch(ptx("setmaxnreg.dec.sync.aligned.u32 30;"), "k", 1, 128, (1, 1, 1), 0, [])
