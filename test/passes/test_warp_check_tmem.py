"""`warp-check` on kernels with tensor memory: nothing in what the passes make, each seeded fault found and located."""

import re

import pytest
import warp_faults as wf
from attn_program import Program
from warp_faults import Fault, set_number, set_text

from fa4c.lowering.compile import compile_text

PLAIN = ("tile-persistent", "tile-lpt-grid")
HAND_MADE = "warp/gemm_tmem.mlir"


def complete(example: str = "causal.mlir", disabled=PLAIN) -> str:
    return wf.complete(example, target="sm_100a", disabled=disabled if example != HAND_MADE else ())


MADE = ["causal.mlir", "full.mlir", "window.mlir", "gqa.mlir", "tile/gemm.mlir", "tile/two_gemms.mlir", HAND_MADE]


@pytest.mark.parametrize("example", MADE)
def test_finds_nothing_in_what_the_passes_make(example):
    assert wf.verdict(complete(example)) == ""


def test_finds_nothing_in_a_walk():
    text = wf.complete("causal.mlir", target="sm_100a", head_dim=(64, 64))
    assert "warp.walk" in text
    assert wf.verdict(text) == ""


def test_finds_nothing_where_two_sums_are_corrected():
    """Each has a factor that lanes pass on through shared memory, so the lanes meet twice in a step."""
    p = Program()
    p.qkv()
    p.arg("q2", "b hq", "m d")
    p.arg("k2", "b hkv", "n d")
    first, second = (p.output(p.softmax(p.scaled(s))[0]) for s in (p.scores(), p.scores("q2", "k2")))
    p.result("o", p.map([first, second], lambda e, x, y: e.op("sub", x, y)), cast=True)
    text = compile_text(p.text().replace("x8x", "x64x").replace("x6x", "x64x"), "two.mlir", emit="warp", target="sm_100a")
    compute, correct = text.partition('sym_name = "compute"')[::2]
    assert compute.count('"warp.post"') == correct.count('"warp.fetch"') == 2
    assert wf.verdict(text) == ""


NAMES = ("wait", "arrive", "tcgen05_commit", "tmem_wait", "tcgen05_mma", "tmem_load", "tmem_map", "tmem_free", "elect", "tma_put",
         "store_commit", "store_wait", "fence_async")


def count(text: str, name: str) -> int:
    return len(re.findall(rf'"warp\.{name}"', text))


# A sum of no products is 0, and what is read there was written: nothing is in disorder.
HARMLESS = [(HAND_MADE, "tcgen05_mma", 0)]


def left_out(example):
    all_of_them = [(example, name, n) for name in NAMES for n in range(count(complete(example), name))]
    return [pytest.param(*one, id=f"{example}-{one[1]}-{one[2]}") for one in all_of_them if one not in HARMLESS]


@pytest.mark.parametrize(("example", "name", "n"), [*left_out("causal.mlir"), *left_out(HAND_MADE)])
def test_leaving_out_is_found(example, name, n):
    said = wf.verdict(complete(example), lambda ops: ops.all(name)[n].erase())
    assert wf.is_located(said), said


def backward() -> str:
    """dS through shared memory from one role to another, dQ added by a third."""
    return wf.complete("full.mlir", target="sm_100a", direction="bwd", head_dim=(128, 128), disabled=PLAIN)


# The hand-over of O in a CTA that walks through tiles: left out of role, and what is said.
HANDED_OVER = [
    ("acquire", "correct", 0, "writes a slot that was not acquired"),
    ("fence_async", "correct", 0, "hands a slot over before its warp's writes can be seen"),
    ("wait", "epilogue", 1, "reads a slot of its buffer that was not waited for"),
    ("tma_put", "epilogue", 1, "hands over a buffer that nothing takes|closes a group without stores"),
    ("store_wait", "epilogue", 0, "releases a slot that a copy may still read"),
    ("release", "epilogue", 1, "leaves a slot that it has not released"),
]


@pytest.mark.parametrize(("name", "role", "n", "message"), HANDED_OVER)
def test_leaving_out_of_the_hand_over_is_found(name, role, n, message):
    text = wf.complete("full.mlir", target="sm_100a", head_dim=(64, 64))
    said = wf.verdict(text, lambda ops: ops.all(name, role=role)[n].erase())
    assert re.search(message, said) and wf.is_located(said), said


@pytest.mark.parametrize("half", [0, 1])
def test_each_half_is_given_back_once_it_is_read(half):
    """The first one while the copy engine may still read the second."""
    text = wf.complete("full.mlir", target="sm_100a", head_dim=(64, 64))
    said = wf.verdict(text, lambda ops: set_number(ops.all("store_wait", role="epilogue")[half], "pending", 2 - half))
    assert "releases a slot that a copy may still read" in said, said


IN_THE_BLOCK_LOOP = {"fence_async": 5, "sync_warp": 3, "arrive": 4, "barrier": 8, "tmem_wait": 3}


def test_finds_nothing_in_the_backward():
    assert wf.verdict(backward()) == ""


@pytest.mark.parametrize(("name", "n"), [(name, n) for name, count in IN_THE_BLOCK_LOOP.items() for n in range(count)])
def test_leaving_out_in_the_backward_is_found(name, n):
    said = wf.verdict(backward(), lambda ops: ops.all(name, inside="loop")[n].erase())
    assert wf.is_located(said), said


def with_column(text: str, kind: str, column: int) -> str:
    changed = re.sub(rf"({kind}, #tile.tmem<)\d+", rf"\g<1>{column}", text)
    assert changed != text
    return changed


@pytest.mark.parametrize(("kind", "column", "message"), [
    ("256x128xbf16", 0, "touches columns 0 to 63 of tensor memory while role compute, warpgroup 0 may not be done with them"),  # P over O
    ("256x128xbf16", 96, "touches columns 96 to 127 of tensor memory while role compute"),
])  # fmt: skip
def test_an_illegal_map_is_found(kind, column, message):
    said = wf.verdict(with_column(complete(), kind, column))
    assert message in said and wf.is_located(said), said


def test_scores_that_are_formed_too_early_are_found():
    """Head dim 64, where P has columns of its own because the next scores come before the product that reads it: not over the scores."""
    text = wf.complete("full.mlir", target="sm_100a", head_dim=(64, 64), disabled=PLAIN)
    assert wf.verdict(text) == ""
    said = wf.verdict(with_column(text, "256x128xbf16", 64))
    assert "of tensor memory" in said and wf.is_located(said), said


def test_a_legal_map_is_not():
    assert wf.verdict(with_column(complete(), "256x128xbf16", 192)) == ""


def pipe_of(ops, k: int):
    return ops.all("pipeline")[k]  # 0: Q, 1: K, 2: V, 3: O on its way out, 4: scores, 5: factors, 6: P, 7: O is scaled, ...


def with_group(ops, group: int):
    return next(op for op in ops.all("state", role="mma") if "group" in op.attributes and op.attributes["group"].value == group)


FAULTS = [
    Fault("fewer arrivals fill P", lambda o: set_number(pipe_of(o, 6), "fills", 2), "brings 4 arrivals to a slot|waits forever"),
    Fault("more arrivals fill P", lambda o: set_number(pipe_of(o, 6), "fills", 12), "waits forever"),
    Fault("one ring for both warpgroups", lambda o: set_number(pipe_of(o, 4), "groups", 1), "has group = 1"),
    Fault("the other block's turn", lambda o: set_number(with_group(o, 0), "group", 1), "."),
    Fault("scores start full", lambda o: set_number(o.all("state", role="compute")[-1], "phase", 1), "touches columns|waits forever|fills"),
    Fault("the same block twice", lambda o: set_number(o.all("tcgen05_mma")[0], "block", 1), "that nothing has read|nothing was written"),
    Fault("a block that is not", lambda o: set_number(o.all("tcgen05_mma")[0], "block", 2), "256 rows are 2 blocks of 128"),
    Fault("too narrow an allocation", lambda o: set_number(o["tmem_alloc"], "columns", 256), "takes columns 128 to 256 of 128"),
    Fault("an odd allocation", lambda o: set_number(o["tmem_alloc"], "columns", 384), "takes a power of two"),
    Fault("allocated by nobody", lambda o: set_number(o["tmem_alloc"], "warp", 20), "the kernel has no such warp"),
    Fault("its address over a barrier", lambda o: set_number(o["tmem_alloc"], "word", 0), "share no bytes with anything"),
    Fault("addressed too early", lambda o: o["tmem"].move_before(o["init_barriers"]), "stands before warp.init_barriers"),
    Fault("freed too early", lambda o: o["tmem_free"].move_before(o["role"]), "is not given back once, behind all roles"),
    Fault("rows in quads", lambda o: set_text(o.all("role")[3], "layout", "quads"), "stands in a role of layout|holds 256 rows"),
    Fault("registers that differ", lambda o: set_number(o.all("role")[1], "registers", 56), "but its warpgroup 0 has 32"),
    Fault("commits to nobody", lambda o: set_text(o["tcgen05_commit"], "barrier", "empty"), "."),
    Fault("two who store", lambda o: set_number(o.all("role")[2], "active", 2), "is done by 2 threads"),
    Fault("all threads multiply", lambda o: o["tcgen05_mma"].move_before(o["tcgen05_mma"].parent), "is done by all threads"),
    Fault("no factor passed on", lambda o: o["post"].erase(), "takes a row vector that nobody passed on"),
    Fault("a factor for nobody to wait for", lambda o: o.all("wait", role="correct")[0].erase(), "."),
    Fault("lanes that did not meet", lambda o: o["sync_warp"].erase(), "signals before all lanes have passed on"),
    Fault("a row vector over a buffer", lambda o: set_number(o["row_box"], "offset", 1024), "share no bytes with anything"),
    Fault("P signalled before it is stored", lambda o: o.all("arrive")[1].move_before(o.all("tmem_map", role="compute")[0]), "."),
    Fault(
        "a commit before its MMA",
        lambda o: o["tcgen05_commit"].move_before(o["tcgen05_mma"]),
        "touches columns",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_finds(fault):
    said = wf.verdict(complete(), fault.apply)
    assert re.search(fault.message, said), said
    assert wf.is_located(said), said


def test_orders_between_roles_are_no_barriers_yet():
    text = wf.complete("causal.mlir", target="sm_100a", disabled=(*PLAIN, "warp-insert-barriers", "warp-check"))
    assert "is done by all threads" in wf.verdict(text)  # the copies, which come first
