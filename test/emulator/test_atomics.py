"""Atomics and what orders them: vectors and their rounding against a loop over lanes, scopes, fences, accumulation in workspaces."""

import itertools

import numpy as np
import pytest
from emulator_kernels import bf16, f32, ptx
from kernel_parts import barriers

from fa4c.runtime.emulator import Buffer, EmulatorError, launch

rng = np.random.default_rng(23)


def update(op, old, v, t):
    """One element, by Python floats: a float32 sum in the GPU's memory has no subnormals, 16 bits are rounded once."""
    if t == "f32":
        flat = [np.float32(x) if abs(x) >= 2.0**-126 else np.copysign(np.float32(0), x) for x in (old, v)]
        total = np.float32(float(flat[0]) + float(flat[1]))
        return total if abs(total) >= 2.0**-126 else np.copysign(np.float32(0), total)
    if op == "add":
        exact = np.float32(float(old) + float(v))
        return f32(bf16(np.array([exact])))[0] if t.startswith("bf16") else np.float32(np.float16(exact))
    first = (old < v or (old == v == 0 and np.signbit(old))) == (op == "min")
    return old if first else v


VECTORS = [("add", "f32", 1), ("add", "f32", 2), ("add", "f32", 4), *itertools.product(["add", "min", "max"], ["bf16x2", "f16x2"], [2, 4]),
           *itertools.product(["add", "max"], ["bf16", "f16"], [2, 8]), ("add", "bf16x2", 1), ("add", "f16x2", 1)]  # fmt: skip


@pytest.mark.parametrize("give_old", [False, True])
@pytest.mark.parametrize("op,t,n", VECTORS)
def test_vectors_add_element_by_element(op, t, n, give_old):
    """32 lanes on 8 places, lane by lane; with `atom` each lane gets what it found."""
    halves = t != "f32"
    per = n * (2 if t.endswith("x2") else 1)
    words = max(1, per * (2 if halves else 4) // 4)
    values = (rng.integers(-40, 40, (32, per)) / 8).astype(np.float32)
    start = (rng.integers(-40, 40, (8, per)) / 8).astype(np.float32)
    values[5], start[3] = 0.0, -0.0
    values[3::8] = 0.0
    if t == "f32":
        values[7], start[7] = 2.0**-130, 2.0**-140
    want, found = start.copy(), np.zeros_like(values)
    for lane in range(32):
        for k in range(per):
            found[lane, k] = want[lane % 8, k]
            want[lane % 8, k] = update(op, want[lane % 8, k], values[lane, k], t)
    encode = (lambda x: x) if not halves else bf16 if t.startswith("bf16") else (lambda x: x.astype(np.float16).view(np.uint16))
    kind, size = ("b32", 4) if not halves or t.endswith("x2") else ("b16", 2)
    regs = [f"%{'h' if size == 2 else 'acc'}{k}" for k in range(2 * n)]
    pack = lambda names: f"{{{', '.join(names)}}}" if n > 1 else names[0]  # noqa: E731
    noftz = ".noftz" if halves else ""
    vector = f".v{n}" if n > 1 else ""
    to = pack(regs[n:]) + ", " if give_old else ""
    code = f"{'atom' if give_old else 'red'}.global.{op}{noftz}{vector}.{t} {to}[%rd5], {pack(regs[:n])};"
    loads = "\n".join(f"ld.global.{kind} {r}, [%rd4+{size * k}];" for k, r in enumerate(regs[:n]))
    stores = "\n".join(f"st.global.{kind} [%rd6+{size * k}], {r};" for k, r in enumerate(regs[n:])) if give_old else ""
    text = ptx(f"""ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [acc]; ld.param.u64 %rd2, [old];
and.b32 %r4, %r0, 7; mul.wide.u32 %rd3, %r0, {4 * words}; add.u64 %rd4, %rd0, %rd3; add.u64 %rd6, %rd2, %rd3;
mul.wide.u32 %rd3, %r4, {4 * words}; add.u64 %rd5, %rd1, %rd3;
{loads}
{code}
{stores}""", [".u64 x", ".u64 acc", ".u64 old"])  # fmt: skip
    x, acc, old = encode(values), encode(start), encode(np.zeros_like(values))
    report = launch(text, "k", 1, 32, (1, 1, 1), 0, [Buffer(x), Buffer(acc), Buffer(old)])
    assert report.ok, report.text()
    np.testing.assert_array_equal(acc.view(np.uint8), encode(want).view(np.uint8))
    if give_old:
        np.testing.assert_array_equal(old.view(np.uint8), encode(found).view(np.uint8))
    total = report.counters["total"]
    assert total["atomics"] == 32 * n and total["global_bytes.atomic"] == 32 * n * (4 if kind == "b32" else 2)


def test_subnormals_stay_in_shared_memory():
    text = ptx("""ld.param.u64 %rd0, [x]; mov.f32 %f0, 0f00000400;
st.shared.f32 [%r1], %f0; red.shared.add.f32 [%r1], %f0; red.global.add.f32 [%rd0], %f0;
ld.shared.f32 %f1, [%r1]; st.global.f32 [%rd0+4], %f1;""", [".u64 x"])  # fmt: skip
    x = np.array([0x400, 0], np.uint32)
    launch(text, "k", 1, 1, (1, 1, 1), 64, [Buffer(x)])
    assert x.tolist() == [0, 0x800]


@pytest.mark.parametrize("line,what", [
    ("red.global.add.v2.f32 [%rd0+4], {%f0, %f1};", "misaligned"),
    ("red.global.add.v4.f32 [%rd0+8], {%f0, %f1, %f2, %f3};", "misaligned"),
    ("red.global.add.v2.f32 [%rd0+64], {%f0, %f1};", "out of bounds"),
    ("cvta.shared.u64 %rd1, %rd2; red.add.v2.f32 [%rd1], {%f0, %f1};", "vector atomic on shared memory"),
])  # fmt: skip
def test_bad_vectors_are_located(line, what):
    text = ptx(f"ld.param.u64 %rd0, [x]; mov.u64 %rd2, sm;\n{line}", [".u64 x"])
    with pytest.raises(EmulatorError, match=what) as caught:
        launch(text, "k", 1, 1, (1, 1, 1), 64, [Buffer(np.zeros(16, np.float32))])
    assert caught.value.line == 18


# --- what orders them -------------------------------------------------------------------------------------------------------------
def classes(text, ctas=2, cluster=(1, 1, 1), poison=False, block=32):
    """Report classes, and the report; a flag of 8 words and 64 words of data."""
    flag, data = np.zeros(8, np.uint32), np.zeros(64, np.uint32)
    report = launch(text, "k", ctas, block, cluster, 1024, [Buffer(flag, name="flag"), Buffer(data, name="data", poison=poison)])
    return {h.cls for h in report.errors}, report


# CTA 0 writes data and raises the flag, CTA 1 waits for it and reads.
HANDOVER = """
ld.param.u64 %rd0, [flag]; ld.param.u64 %rd1, [data]; mov.u32 %r4, %ctaid.x;
setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
setp.ne.u32 %p1, %r4, 0; @%p1 bra READ;
st.global.u32 [%rd1], 7;
{write}
bra END;
READ: {read} setp.eq.u32 %p2, %r5, 0; @%p2 bra READ;
{after}
ld.global.u32 %r6, [%rd1]; st.global.u32 [%rd1+4], %r6;
END:"""
ORDERED = {
    "release and acquire": ("st.release.gpu.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "reduction and acquire": ("red.release.gpu.global.add.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "the system's scope": ("st.release.sys.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "fences": ("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.relaxed.gpu.global.u32 %r5, [%rd0];", "fence.acq_rel.gpu;"),
    "membar": ("membar.gl; st.volatile.global.u32 [%rd0], 1;", "ld.volatile.global.u32 %r5, [%rd0];", "membar.gl;"),
    "an atomic acquires": ("st.release.gpu.global.u32 [%rd0], 1;", "atom.acquire.gpu.global.and.b32 %r5, [%rd0], 255;", ""),
    "a relaxed update in between": (
        "st.release.gpu.global.u32 [%rd0], 1; red.relaxed.gpu.global.add.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "an older flag read before the fence": (
        "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd0+8], 1; st.global.u32 [%rd1], 8; fence.acq_rel.gpu; "
        "st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.relaxed.gpu.global.u32 %r5, [%rd0];",
        "ld.relaxed.gpu.global.u32 %r7, [%rd0+8]; fence.acq_rel.gpu;"),
}  # fmt: skip
UNORDERED = {
    "both relaxed": ("st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.relaxed.gpu.global.u32 %r5, [%rd0];", ""),
    "relaxed write": ("st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "a release for the CTA": ("st.release.cta.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "an acquire for the CTA": ("st.release.gpu.global.u32 [%rd0], 1;", "ld.acquire.cta.global.u32 %r5, [%rd0];", ""),
    "a release for the cluster": ("st.release.cluster.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "a fence for the CTA": ("fence.acq_rel.cta; st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "an acquiring fence for the CTA": (
        "st.release.gpu.global.u32 [%rd0], 1;", "ld.relaxed.gpu.global.u32 %r5, [%rd0];", "fence.acq_rel.cta;"),
    "a plain write between fence and flag": (
        "fence.acq_rel.gpu; st.global.u32 [%rd1], 8; st.relaxed.gpu.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "a plain store to the flag": ("st.global.u32 [%rd0], 1;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
    "a strong store without release breaks the chain": (
        "st.release.gpu.global.u32 [%rd0], 1; st.relaxed.gpu.global.u32 [%rd0], 2;", "ld.acquire.gpu.global.u32 %r5, [%rd0];", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ORDERED, *UNORDERED])
def test_hand_over_of_data(name):
    write, read, after = (ORDERED | UNORDERED)[name]
    found, report = classes(ptx(HANDOVER.format(write=write, read=read, after=after), [".u64 flag", ".u64 data"]))
    assert found == (set() if name in ORDERED else {"race"}), report.text()


@pytest.mark.parametrize("scope,found", [("cluster", set()), ("cta", {"race"})])
def test_scopes_inside_a_cluster(scope, found):
    write, read = f"st.release.{scope}.global.u32 [%rd0], 1;", f"ld.acquire.{scope}.global.u32 %r5, [%rd0];"
    text = ptx(HANDOVER.format(write=write, read=read, after=""), [".u64 flag", ".u64 data"])
    got, report = classes(text, cluster=(2, 1, 1))
    assert got == found, report.text()


# Each CTA takes tickets, then counts itself out; the last one resets both words with plain stores.
COUNT_OUT = """
ld.param.u64 %rd0, [flag]; ld.param.u64 %rd1, [data]; setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
atom.relaxed.gpu.global.add.u32 %r4, [%rd0], 1;
fence.acq_rel.gpu;
atom.relaxed.gpu.global.add.u32 %r5, [%rd0+4], 1;
setp.ne.u32 %p1, %r5, 2; @%p1 bra END;
fence.acq_rel.gpu; // @acquire
st.global.u32 [%rd0], 0; st.global.u32 [%rd0+4], 0;
END:"""


def test_the_last_one_resets_the_counters():
    """A fence makes the count a release that includes itself; without one behind the count, the tickets are not ordered."""
    text = ptx(COUNT_OUT, [".u64 flag", ".u64 data"])
    found, report = classes(text, 3)
    assert not found, report.text()
    found, report = classes(text.replace("fence.acq_rel.gpu; // @acquire", ""), 3)
    assert found == {"race"} and len(report.errors) == 2, report.text()


# Two CTAs add pairs to a workspace; the last to finish reads the sums.
ACCUMULATE = """
ld.param.u64 %rd0, [flag]; ld.param.u64 %rd1, [data];
mul.wide.u32 %rd2, %r0, 8; add.u64 %rd3, %rd1, %rd2; cvt.rn.f32.u32 %f0, %r0; add.f32 %f1, %f0, %f0;
red.global.add.v2.f32 [%rd3], {%f0, %f1}; // @add
bar.sync 0;
setp.ne.u32 %p0, %r0, 0; @%p0 bra TAKEN;
atom.acq_rel.gpu.global.add.u32 %r4, [%rd0], 1; // @ticket
st.shared.u32 [%r1], %r4;
TAKEN: bar.sync 0;
ld.shared.u32 %r4, [%r1]; setp.eq.u32 %p1, %r4, 0; @%p1 bra END;
ld.global.v2.f32 {%f2, %f3}, [%rd3]; add.f32 %f2, %f2, %f3; st.global.f32 [%rd3], %f2;
END:"""


def accumulate(edit=lambda t: t, poison=False, **options):
    flag, data = np.zeros(1, np.uint32), np.zeros(64, np.float32)
    text = edit(ptx(ACCUMULATE, [".u64 flag", ".u64 data"]))
    report = launch(text, "k", 2, 32, (1, 1, 1), 64, [Buffer(flag, name="flag"), Buffer(data, name="sums", poison=poison)], **options)
    return report, data


def test_sums_of_two_ctas():
    for options in ({}, *({"schedule": "random", "schedule_seed": k} for k in range(8))):
        report, data = accumulate(**options)
        assert report.ok, report.text()
        np.testing.assert_array_equal(data[::2], 6 * np.arange(32))


@pytest.mark.parametrize("edit", [
    lambda t: t.replace("atom.acq_rel.gpu", "atom.relaxed.gpu"),
    lambda t: t.replace("bar.sync 0;\nsetp.ne.u32 %p0", "setp.ne.u32 %p0"),
    lambda t: t.replace("setp.eq.u32 %p1, %r4, 0;", "setp.eq.u32 %p1, %r4, 9;"),  # nobody waits for the other
])  # fmt: skip
def test_a_plain_read_needs_all_the_additions(edit):
    """Also where the reader's own addition is the last one: those before it are not forgotten."""
    found = {h.cls for k in range(4) for h in accumulate(edit, schedule="random", schedule_seed=k)[0].errors}
    assert found == {"race"}
    assert {h.cls for h in accumulate(edit)[0].errors} == {"race"}


def test_adding_to_a_workspace_that_nothing_has_set():
    report, _ = accumulate(poison=True)
    assert {h.cls for h in report.errors} == {"uninitialised"} and "sums" in report.text(), report.text()


def test_adding_to_shared_memory_that_nothing_has_set():
    text = ptx("red.shared.add.u32 [%r1], 1;")
    report = launch(text, "k", 1, 1, (1, 1, 1), 64, [])
    assert {h.cls for h in report.errors} == {"uninitialised"}
    text = ptx("atom.shared.exch.b32 %r4, [%r1], 1; ld.shared.u32 %r5, [%r1];")
    assert launch(text, "k", 1, 1, (1, 1, 1), 64, []).ok


def test_an_addition_beside_the_asynchronous_proxy():
    """A bulk reduction and a `red` on one location are both atomic; a bulk store is not."""
    kernel = f"""ld.param.u64 %rd0, [flag]; ld.param.u64 %rd1, [data];
{barriers(1)}
st.shared.u32 [%r1+128], %r0; fence.proxy.async.shared::cta; bar.sync 0;
red.global.add.u32 [%rd1], 1;
@%p0 bra END;
COPY [%rd1], [%r1+128], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:"""
    text = ptx(kernel.replace("st.shared.u32 [%r1+128], %r0;", "shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r1; st.shared.u32 [%r4+128], %r0;"),
               [".u64 flag", ".u64 data"])  # fmt: skip
    found, report = classes(text.replace("COPY", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"), 1)
    assert not found, report.text()
    found, report = classes(text.replace("COPY", "cp.async.bulk.global.shared::cta.bulk_group"), 1)
    assert found & {"race", "proxy-race"}, report.text()
