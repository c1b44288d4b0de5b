"""Seeded faults: each plants one mistake in a correct kernel and must get its report, at its line, in the default schedule.

`wrong result` is the expected class only for faults that break no ordering, initialisation, bounds or lifetime rule.
"""

import pytest
from emulator_kernels import CASES, line_of, wait

from fa4c.runtime.emulator import EmulatorError


def drop(*markers):
    """Remove the marked statements (their lines stay, so that markers do not move)."""

    def apply(text):
        for m in markers:
            n = line_of(text, m) - 1
            lines = text.split("\n")
            lines[n] = f"// dropped // @{m}"
            text = "\n".join(lines)
        return text

    return apply


def sub(marker, old, new):
    """Change text in the marked line."""

    def apply(text):
        n = line_of(text, marker) - 1
        lines = text.split("\n")
        assert old in lines[n], (marker, old, lines[n])
        lines[n] = lines[n].replace(old, new)
        return "\n".join(lines)

    return apply


def put(marker, line):
    """Replace the marked statement."""

    def apply(text):
        n = line_of(text, marker) - 1
        lines = text.split("\n")
        lines[n] = f"{line} // @{marker}"
        return "\n".join(lines)

    return apply


def both(*edits):
    def apply(text):
        for e in edits:
            text = e(text)
        return text

    return apply


def tcgen_early_release(text):
    """Arrive before the loaded values are used, without wait::ld."""
    return both(put("waitld", "mbarrier.arrive.shared.b64 %rd9, [%r1+16];"), put("arriveP", ""))(text)


WRONG = "wrong result"
LATE_WRITE = """setp.eq.u32 %p5, %r4, 1;
@%p5 bra Z;
mov.u32 %r30, 0;
Y: add.u32 %r30, %r30, 1;
setp.lt.u32 %p6, %r30, 9000;
@%p6 bra Y;
st.shared::cluster.u32 [%r8+64], %r10;
Z:"""


def shuffle(lane):
    """The lower half of the warp reads a lane, after the warp's sync."""
    return f"bar.warp.sync 0xffffffff;\nsetp.lt.u32 %p1, %r3, 16;\n@%p1 shfl.sync.idx.b32 %r20, %r6, {lane}, 31, 0xffff;"


def column(shift):
    """O is loaded from a column that depends on the lane."""
    return both(put("wO", f"{wait('%r1+24', '0')}\nshr.u32 %r31, %r3, {shift};\nadd.u32 %r31, %r31, %r14;"), sub("ldO", "%r14", "%r31"))


# name: (case, edit, report class, marker of a line in the report, launch options)
FAULTS = {
    # named barriers and warps
    "named: dropped barrier": ("named", drop("wait"), "race", "read", {}),
    "named: reader arrives instead of waiting": ("named", put("wait", "bar.arrive 1, 64;"), "race", "read", {}),
    "named: writer does not wait before the second write": ("named", put("empty", "bar.arrive 2, 64;"), "deadlock", "wait", {}),
    "named: second write before the barrier": (
        "named",
        both(put("empty", "st.shared.u32 [%r5], %r6;"), put("rewrite", "bar.sync 2, 64;")),
        "race",
        "empty",
        {},
    ),
    "named: wrong barrier number": ("named", sub("wait", "1, 64", "3, 64"), "deadlock", "wait", {}),
    "named: wrong thread count": ("named", sub("wait", "1, 64", "1, 96"), "barrier-count", "wait", {}),
    "named: missing arrive": ("named", drop("free"), "deadlock", "empty", {}),
    "warp: dropped warp sync": ("warp", drop("sync"), "race", "read", {}),
    "warp: sync of half the lanes": ("warp", put("sync", "setp.lt.u32 %p1, %r3, 16;\n@%p1 bar.warp.sync 0x0000ffff;"), "race", "read", {}),
    "warp: shuffle from a lane that takes no part": ("warp", put("sync", shuffle(20)), "inactive-lane", "sync", {}),
    # mbarriers
    "mbar: dropped wait for full": ("mbar", drop("wfull"), "race", "read", {}),
    "mbar: wrong phase for full": ("mbar", put("wfull", "xor.b32 %r12, %r12, 1;\n" + wait("%r13", "%r12")), "deadlock", "wfull", {}),
    "mbar: dropped wait for empty": ("mbar", drop("wempty"), "missed-phase", "full", {}),
    "mbar: wrong phase for empty": ("mbar", put("wempty", "xor.b32 %r12, %r12, 1;\n" + wait("%r14", "%r12")), "deadlock", "wfull", {}),
    "mbar: missing arrive on full": ("mbar", drop("full"), "deadlock", "wfull", {}),
    "mbar: missing arrive on empty": ("mbar", drop("empty"), "deadlock", "wempty", {}),
    "mbar: relaxed arrive": ("mbar", put("full", "mbarrier.arrive.relaxed.cta.shared::cta.b64 %rd1, [%r13];"), "race", "read", {}),
    "mbar: arrive too often": ("mbar", put("full", "mbarrier.arrive.shared.b64 %rd1, [%r13], 2;"), "mbarrier-overflow", "full", {}),
    "mbar: count too high": ("mbar", sub("init", "32", "33"), "deadlock", "wfull", {}),
    "mbar: count too low": ("mbar", sub("init", "32", "16"), "mbarrier-overflow", "full", {}),
    "mbar: initialisation not synchronised": ("mbar", drop("initsync"), "race", "init", {}),
    "mbar: never initialised": ("mbar", drop("init"), "error", "full", {}),
    "mbar: write after the arrive": (
        "mbar",
        both(put("write", "mbarrier.arrive.shared.b64 %rd1, [%r13];"), put("full", "st.shared.u32 [%r15+128], %r16;")),
        "race",
        "full",
        {},
    ),
    "mbar: early release of the stage": (
        "mbar",
        both(put("read", "mbarrier.arrive.shared.b64 %rd1, [%r13+16];"), put("empty", "ld.shared.u32 %r16, [%r15+128];")),
        "race",
        "empty",
        {},
    ),
    # TMA
    "tma: read before completion": ("tma", drop("wait"), "race", "read", {}),
    "tma: dropped proxy fence": ("tma", drop("fence"), "proxy-race", "store", {}),
    "tma: dropped barrier before the store": ("tma", drop("sync"), "race", "store", {}),
    "tma: source reused before it is read": ("tma", drop("drain"), "race", "reuse", {}),
    "tma: wait for the wrong group": ("tma", sub("drain", "read 0", "read 1"), "race", "reuse", {}),
    "tma: group not committed": ("tma", drop("commit"), "race", "reuse", {}),
    "tma: too few bytes expected": ("tma", sub("expect", "8192", "4096"), "deadlock", "wait", {}),
    "tma: too many bytes expected": ("tma", sub("expect", "8192", "8320"), "deadlock", "wait", {}),
    "tma: barrier initialised without synchronisation": ("tma", drop("initsync"), "race", "wait", {}),
    "tma: off-by-one box": ("tma", lambda t: t, "deadlock", "wait", {"tweak": {"box": (64, 63)}}),
    "tma: row coordinate off by one": ("tma", sub("load", "{%r4, %r5}", "{%r5, %r4}"), WRONG, None, {}),
    "tma: wrong swizzle": ("tma", lambda t: t, WRONG, None, {"tweak": {"swizzle": 0}}),
    "tma: destination out of bounds": ("tma", sub("load", "[%r1+1024]", "[%r1+9216]"), "error", "load", {}),
    "tma: destination misaligned": ("tma", sub("load", "[%r1+1024]", "[%r1+1040]"), "error", "load", {}),
    "tma: read beyond the loaded tile": ("tma", sub("read", "[%r6+1024]", "[%r6+1152]"), "uninitialised", "read", {}),
    # bulk copies
    "bulk: dropped proxy fence": ("bulk", drop("fence"), "proxy-race", "reduce", {}),
    "bulk: result read after .read wait": ("bulk", sub("drain", "wait_group 0", "wait_group.read 0"), "race", "readback", {}),
    "bulk: reduction into uninitialised memory": ("bulk", lambda t: t, "uninitialised", "reduce", {"tweak": {"poison": True}}),
    "bulk: size no multiple of 16": ("bulk", sub("load", "512", "504"), "error", "load", {}),
    "bulk: source out of bounds": ("bulk", sub("load", "[%rd0]", "[%rd0+16]"), "error", "load", {}),
    "bulk: read before completion": ("bulk", drop("wait"), "race", "read", {}),
    # wgmma
    "wgmma: dropped wait_group": ("wgmma", drop("mwait"), "wgmma-pending", "use", {}),
    "wgmma: wait for the wrong group": ("wgmma", sub("mwait", "aligned 0", "aligned 1"), "wgmma-pending", "use", {}),
    "wgmma: dropped first fence": ("wgmma", drop("fence"), "wgmma-fence", "mma0", {}),
    "wgmma: dropped fence before operand A in registers": ("wgmma", drop("fence2"), "wgmma-fence", "mmaRS", {}),
    "wgmma: operand A overwritten in flight": (
        "wgmma",
        both(put("mwait2", "mov.u32 %r10, 0;"), put("clobber", "wgmma.wait_group.sync.aligned 0;")),
        "wgmma-pending",
        "mwait2",
        {},
    ),
    "wgmma: operands not loaded yet": ("wgmma", drop("wait"), "race", "mma0", {}),
    "wgmma: stage overwritten in flight": (
        "wgmma",
        both(drop("mwait2"), put("clobber", "wgmma.wait_group.sync.aligned 0;")),
        "race",
        "reload",
        {},
    ),
    "wgmma: dropped barrier before the reload": ("wgmma", drop("freed"), "race", "reload", {}),
    "wgmma: swizzle of the descriptor": ("wgmma", sub("desc", "0x4000004000010000", "0x8000004000010000"), WRONG, None, {}),
    "wgmma: stride of the descriptor": ("wgmma", sub("desc", "0x4000004000010000", "0x400000C000010000"), "error", "mma0", {}),
    "wgmma: dropped proxy fence": ("proxy", drop("fence"), "proxy-race", "mma", {}),
    "wgmma: dropped barrier after generic stores": ("proxy", drop("sync"), "race", "mma", {}),
    "wgmma: operand never written": ("proxy", drop("fillB"), "uninitialised", "mma", {}),
    # clusters
    "cluster: write before the peer is ready": ("cluster", drop("carrive", "cwait"), "race", "arrive", {}),
    "cluster: relaxed remote arrive": ("cluster", sub("arrive", ".release", ".relaxed"), "race", "read", {}),
    "cluster: dropped wait": ("cluster", drop("wait"), "race", "read", {}),
    "cluster: own rank instead of the peer's": (
        "cluster",
        sub("peer", "xor.b32 %r5, %r4, 1", "and.b32 %r5, %r4, 0"),
        "deadlock",
        "wait",
        {},
    ),
    "cluster: relaxed barrier without an initialisation fence": (
        "cluster",
        both(drop("initfence"), sub("carrive", "arrive", "arrive.relaxed")),
        "race",
        "arrive",
        {},
    ),
    "cluster: remote write after the peer's exit": (
        "cluster",
        both(drop("arrive", "endarrive", "endwait", "wait", "read"), put("write", LATE_WRITE)),
        "exited-peer",
        None,
        {},
    ),
    "dsmem: dropped proxy fence": ("dsmem", drop("fence"), "proxy-race", "copy", {}),
    "dsmem: dropped wait": ("dsmem", drop("wait"), "race", "read", {}),
    "dsmem: missing expect_tx": ("dsmem", drop("expect"), "deadlock", "wait", {}),
    # global memory
    "semaphore: relaxed load": ("semaphore", sub("acquire", "acquire", "relaxed"), "race", "load", {}),
    "semaphore: relaxed reduction": ("semaphore", sub("release", "release", "relaxed"), "race", "load", {}),
    "semaphore: acquire for the CTA alone": ("semaphore", sub("acquire", "gpu", "cta"), "race", "load", {}),
    "semaphore: release for the CTA alone": ("semaphore", sub("release", ".gpu", ".cta"), "race", "load", {}),
    "semaphore: dropped barrier before the release": ("semaphore", drop("leave"), "race", "load", {}),
    "semaphore: dropped barrier after the acquire": ("semaphore", drop("enter"), "race", "load", {}),
    "semaphore: missing release": ("semaphore", drop("release"), "deadlock", "acquire", {}),
    "atomic: plain read, add, write": (
        "atomic",
        put("red", "ld.global.u32 %r6, [%rd2];\nadd.u32 %r6, %r6, %r4;\nst.global.u32 [%rd2], %r6;"),
        "race",
        None,
        {},
    ),
    "warp: store out of bounds": ("warp", sub("store", "[%rd31]", "[%rd31+4]"), "error", "store", {}),
    "warp: misaligned store": ("warp", sub("store", "[%rd31]", "[%rd31+2]"), "error", "store", {}),
    # cp.async
    "cp.async: dropped wait": ("cpasync", drop("wait1"), "race", "read0", {}),
    "cp.async: another lane's copy without a warp sync": (
        "cpasync",
        both(sub("sync1", "bar.sync 0;", "xor.b32 %r4, %r4, 528;")),
        "race",
        "read0",
        {},
    ),
    "cp.async: wait for the wrong group": ("cpasync", sub("wait0", "wait_group 0", "wait_group 1"), "race", "read1", {}),
    "cp.async: dropped barrier": ("cpasync", drop("sync0"), "race", "read1", {}),
    # tcgen05
    "tcgen05: dropped wait for S": ("tcgen", drop("wS"), "race", "ldS", {}),
    "tcgen05: dropped wait for O": ("tcgen", drop("wO"), "race", "ldO", {}),
    "tcgen05: commit before the last MMA": (
        "tcgen",
        both(
            put("mma1", "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];"),
            put("commit", "tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd5, %rd6, %r11, %p2;"),
        ),
        "race",
        "ldS",
        {},
    ),
    "tcgen05: dropped wait::st": ("tcgen", drop("waitst"), "race", "mmaTS", {}),
    "tcgen05: arrive before the loads are done": ("tcgen", tcgen_early_release, "race", "ldS", {}),
    "tcgen05: P not waited for": ("tcgen", drop("wP"), "race", "mmaTS", {}),
    "tcgen05: O overlaps P": ("tcgen", sub("ocol", "128", "32"), "tmem-overlap", "mmaTS", {}),
    "tcgen05: O overlaps S": ("tcgen", both(sub("ocol", "128", "0"), sub("ldO", "[%r14+128]", "[%r14]")), WRONG, None, {}),
    "tcgen05: columns not allocated": ("tcgen", sub("ldO", "[%r14+128]", "[%r14+256]"), "tmem-unallocated", "ldO", {}),
    "tcgen05: uninitialised accumulator": ("tcgen", sub("noacc", "%p1, 0", "%p1, -1"), "uninitialised", "mma0", {}),
    "tcgen05: leaked columns": ("tcgen", drop("dealloc"), "tmem-leak", "alloc", {}),
    "tcgen05: freed before the readers are done": (
        "tcgen",
        both(put("endsync", "bar.arrive 0, 160;"), drop("waitldO")),
        "tmem-unallocated",
        "ldO",
        {},
    ),
    "tcgen05: wrong count to free": ("tcgen", sub("dealloc", "256", "128"), "tmem-dealloc", "dealloc", {}),
    "tcgen05: alloc after relinquish": (
        "tcgen",
        put(
            "relinquish",
            "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nadd.u32 %r4, %r4, 4;\n"
            "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;",
        ),
        "tmem-relinquished",
        None,
        {},
    ),
    "tcgen05: more columns than there are": (
        "tcgen",
        put("relinquish", "add.u32 %r4, %r4, 4;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 512;"),
        "deadlock",
        None,
        {},
    ),
    "tcgen05: lanes of another warp": ("tcgen", sub("ldO", "[%r14+128]", "[%r7]"), "error", "ldO", {}),
    "tcgen05: lanes disagree on the address": ("tcgen", column(0), "tmem-lane", "ldO", {}),
    "tcgen05: address read before the allocation": ("tcgen", drop("allocsync"), "race", "slot", {}),
    "tcgen05: K step of the descriptor": ("tcgen", sub("mma1", "%rd5, %rd6", "%rd5, %rd4"), WRONG, None, {}),
    "tcgen05: operands not loaded yet": ("tcgen", drop("wload"), "race", "mma0", {}),
    "tcgen05: barrier count of P": ("tcgen", sub("initP", "128", "127"), "mbarrier-overflow", "arriveP", {}),
}


def outcome(case, text, options):
    """(classes with lines, whether the values are wrong) of a run; an EmulatorError counts as class 'error'."""
    try:
        report, error = case.run(text, **dict(options))
    except EmulatorError as e:
        return [("error", (e.line,))], True, e.text()
    return [(h.cls, h.lines) for h in report.errors], bool(error), report.text()


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_reported(name):
    case_name, edit, cls, marker, options = FAULTS[name]
    case = CASES[case_name]
    text = edit(case.text)
    found, wrong, report = outcome(case, text, options)
    if cls == WRONG:
        assert not found and wrong, report
        return
    lines = [x for c, x in found if c == cls]
    assert lines, f"expected {cls}\n{report}"
    if marker:
        n = line_of(text, marker)
        assert any(n in x for x in lines), f"expected line {n} in {lines}\n{report}"


@pytest.mark.parametrize("name", CASES)
def test_correct_kernels_have_no_report(name):
    """The near misses: every unmutated kernel, in the default and in 20 random schedules."""
    case = CASES[name]
    report, error = case.run()
    assert report.ok and not error, report.text()
    for seed in range(20):
        report, error = case.run(schedule="random", schedule_seed=seed)
        assert report.ok and not error, f"seed {seed}\n{report.text()}"


SKIP_FIRST = f"setp.lt.u32 %p5, %r10, 2;\n@%p5 bra FREE;\n{wait('%r14', '%r12')}\nFREE:"
PEER_STAYS = LATE_WRITE.replace("+64]", "+192]").replace("Z:", "Z: barrier.cluster.arrive;")
SECOND_ALLOC = """add.u32 %r4, %r4, 4;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"""
SECOND_DEALLOC = """ld.shared.b32 %r30, [%r1+36];
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 32;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 256;"""
# name: (report class that it just avoids, case, edit)
NEAR_MISSES = {
    "cluster: relaxed barrier after an initialisation fence": ("race", "cluster", sub("carrive", "arrive", "arrive.relaxed")),
    "semaphore: release for the whole system": ("race", "semaphore", sub("release", ".gpu", ".sys")),
    "semaphore: relaxed load before a fence": (
        "race",
        "semaphore",
        both(sub("acquire", "acquire", "relaxed"), put("enter", "fence.acq_rel.gpu;\nbar.sync 0;")),
    ),
    # The issuing thread's own fence, after the barrier, covers what it knows to be ordered.
    "tma: fence by the issuer after the barrier": (
        "proxy-race",
        "tma",
        both(put("fence", "bar.sync 0;"), put("sync", "fence.proxy.async.shared::cta;")),
    ),
    "tma: bytes expected in two parts": (
        "deadlock",
        "tma",
        put(
            "expect",
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 4096;\nmbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 4096;",
        ),
    ),
    "mbar: one arrival more, counted in": (
        "deadlock",
        "mbar",
        both(
            sub("init", "32", "33"),
            put("full", "mbarrier.arrive.shared.b64 %rd1, [%r13];\nsub.u32 %r30, %r13, %r1;\nor.b32 %r30, %r30, %r3;\n"
                "setp.eq.u32 %p5, %r30, 0;\n@%p5 mbarrier.arrive.shared.b64 %rd1, [%r13];"),
        ),
    ),
    "mbar: producers start with the parity of the phase before": ("deadlock", "mbar", lambda t: t),
    "mbar: no wait for stages that are new": ("missed-phase", "mbar", put("wempty", SKIP_FIRST)),
    "mbar: half the lanes arrive for two": (
        "mbarrier-overflow",
        "mbar",
        put("full", "bar.warp.sync 0xffffffff;\nsetp.lt.u32 %p5, %r3, 16;\n@%p5 mbarrier.arrive.shared.b64 %rd1, [%r13], 2;"),
    ),
    "named: the count left out, for all threads": ("barrier-count", "named", sub("wait", "bar.sync 1, 64", "bar.sync 1")),
    "warp: store to the last element through an offset": (
        "error",
        "warp",
        put("store", "add.u64 %rd31, %rd31, 4;\nst.global.u32 [%rd31+-4], %r8;"),
    ),
    "tma: read of the tile's last bytes": (
        "uninitialised",
        "tma",
        put("read", "ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r6+1072];\nld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%r6+1024];"),
    ),
    "wgmma: an empty group may stay open": (
        "wgmma-pending",
        "wgmma",
        put("mwait", "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;"),
    ),
    "wgmma: another register written behind the fence": (
        "wgmma-fence",
        "wgmma",
        put("fence2", "wgmma.fence.sync.aligned;\nmov.u32 %r30, 7;"),
    ),
    "cluster: remote write while the peer waits at the end": ("exited-peer", "cluster", put("endarrive", PEER_STAYS)),
    "warp: shuffle from the last lane that takes part": ("inactive-lane", "warp", put("sync", shuffle(15))),
    "tcgen05: an address from lane numbers, equal in all": ("tmem-lane", "tcgen", column(5)),
    "tcgen05: results used without wait::ld": ("race", "tcgen", drop("waitld", "waitldO")),
    "tcgen05: O right behind P": ("tmem-overlap", "tcgen", both(sub("ocol", "128", "96"), sub("ldO", "+128", "+96"))),
    "tcgen05: the last columns allocated": ("tmem-unallocated", "tcgen", both(sub("ocol", "128", "192"), sub("ldO", "+128", "+192"))),
    "tcgen05: freed by another warp": ("tmem-leak", "tcgen", put("endsync", "bar.sync 0;\nsetp.ne.u32 %p3, %r2, 2;")),
    "tcgen05: two allocations, each freed with its count": (
        "tmem-dealloc",
        "tcgen",
        both(put("relinquish", SECOND_ALLOC), put("dealloc", SECOND_DEALLOC)),
    ),
    "tcgen05: second allocation before the permit is given up": (
        "tmem-relinquished",
        "tcgen",
        both(put("relinquish", SECOND_ALLOC), put("dealloc", SECOND_DEALLOC)),
    ),
    "tcgen05: K steps in the other order": (
        WRONG,
        "tcgen",
        both(sub("mma0", "%rd3, %rd4", "%rd5, %rd6"), sub("mma1", "%rd5, %rd6", "%rd3, %rd4")),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_has_no_report(name):
    _, case_name, edit = NEAR_MISSES[name]
    case = CASES[case_name]
    for options in ({}, {"schedule": "random", "schedule_seed": 3}, {"schedule": "random", "schedule_seed": 4}):
        report, error = case.run(edit(case.text), **options)
        assert report.ok and not error, report.text()


def test_every_class_has_a_near_miss():
    assert {cls for _, _, cls, _, _ in FAULTS.values()} == {cls for cls, _, _ in NEAR_MISSES.values()}


def test_there_are_enough_faults():
    assert len(FAULTS) >= 40
    assert {c for c, *_ in FAULTS.values()} == set(CASES)
