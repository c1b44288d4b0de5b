"""The hand-written tile programs that the interpreter's tests run, with their inputs and what they should compute."""

import pathlib
import re
import string

import numpy as np

from fa4c.ir.context import parse_module

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "tile"
ATTENTION = HERE / "tile_flash_attention.mlir.in"

# Schedules name the operations of the loop in the order in which one step runs them; `+1` marks those that work for the iteration before.
# FA-3: QK of the next block, PV of this one, then the next block's softmax; O is rescaled last, when this block's PV is in it.
FA3 = "load_k load_v qk pv+1 mask row_max grows vote new_max factor p scale_sum add_sum cast rescale"


def places(schedule: str) -> dict[str, str]:
    """name -> the attributes `stage` and `order` that say its place."""
    found = {}
    for order, word in enumerate(schedule.split()):
        name, _, stage = word.partition("+")
        found[name] = f"stage = {stage or 0}, order = {order}"
    return found


def attention(schedule: str | None = FA3, *, k_buffers=2, v_buffers=2, bm=64, bn=32, d=32, threshold=8.0, again=""):
    """The module; `schedule` None leaves the loop unscheduled. `again` runs the loop over the
    keys twice, in a loop around it: "carry on" with the statistics of the first run, or "start anew"."""
    names = places(FA3) if schedule is None else places(schedule)
    assert names.keys() == places(FA3).keys()
    names = {name: "" if schedule is None else ("" if name == "vote" else ", ") + place for name, place in names.items()}
    text = string.Template(ATTENTION.read_text(encoding="utf-8")).substitute(
        names, k_buffers=k_buffers, v_buffers=v_buffers, bm=bm, bn=bn, d=d, threshold=f"{threshold:e}", scale=1.4426950408889634 / d**0.5)
    return parse_module(_twice(text, carry_on=again == "carry on") if again else text, ATTENTION.name)


def _twice(text: str, carry_on: bool) -> str:
    loop, end = "%acc, %max, %sum = scf.for %i = ", "  }\n  %l = "
    inits = {"%o_zero": "%oa", "%max_none": "%ma", "%sum_zero": "%la"}
    carried = ", ".join(f"{inner} = {outer}" for outer, inner in inits.items())
    before, body = text.split(loop)
    body, after = body.split(end)
    for outer, inner in inits.items():
        body = body.replace(f"= {outer}", f"= {inner}") if carry_on else body
    return f"""{before}%c2 = arith.constant 2 : index
  %acc, %max, %sum = scf.for %run = %c0 to %c2 step %c1 iter_args({carried}) -> (!o, !row, !part) {{
    {loop.replace("%acc, %max, %sum", "%a, %b_, %c_")}{body}  }}
    scf.yield %a, %b_, %c_ : !o, !row, !part
{end}{after}"""


def attention_inputs(m: int, n: int, d: int = 32, heads: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """q, k, v with values that bf16 holds exactly, large enough that row maxima grow by more than any threshold now and then."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (1, m, heads, d), "k": (1, n, heads, d), "v": (1, n, heads, d)}
    return {name: np.round(rng.standard_normal(shape) * 64) / 16 for name, shape in shapes.items()}


def attention_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Causal attention (top left) in float64; a row that sees no key gives 0, and -inf as log-sum-exp."""
    scores = np.einsum("bmhd,bnhd->bhmn", q, k) / q.shape[-1] ** 0.5
    rows, columns = np.indices(scores.shape[-2:])
    scores = np.where(columns <= rows, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return {"o": np.einsum("bhmn,bnhd->bmhd", p / np.where(total == 0, 1, total), v), "lse": lse}


def example(name: str, *edits: tuple[str, str], schedule: str = ""):
    """A module of examples/tile after textual edits (a pattern and its replacement), each of which must fit somewhere.

    `schedule` names operations by their results, as `%s`.
    """
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for pattern, replacement in [*edits, *_schedule_edits(schedule)]:
        text, found = re.subn(pattern, replacement, text)
        assert found, pattern
    return parse_module(text.replace(", } :", "} :"), name)


def _schedule_edits(schedule: str) -> list[tuple[str, str]]:
    """Puts stage and order first among the attributes, which follow the operands and, in a map, the region."""
    attributes = r'= "tile\.\w+"\([^()]*\) (?:\(\{.*?\}\) )?\{'
    return [(f"(?s)({result} {attributes})", rf"\1{place}, ") for result, place in places(schedule).items()]


def bf16(rng, *shape) -> np.ndarray:
    """Values that bf16 holds exactly."""
    return np.round(rng.standard_normal(shape) * 16) / 16
