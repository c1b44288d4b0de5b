"""Counts of flash-attn-4's backward kernels per tile: bench/results, as bench/side_by_side found them in the same emulator."""

import importlib.util
import json

from compiled import ROOT


def higher(small: dict, large: dict, tiles: int, head_dim: int, options: tuple = ()) -> dict[str, tuple[float, float]]:
    """{what: (ours, theirs)} where ours is higher per tile. Counters of our kernel of the full mask: `large` of so many tiles more."""
    spec = importlib.util.spec_from_file_location("side_by_side", ROOT / "bench" / "side_by_side" / "side_by_side.py")
    side_by_side = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(side_by_side)
    record = json.loads((ROOT / "bench" / "results" / "2026-11-30_emulator_side_by_side.json").read_text())
    wanted = ["bwd", [head_dim] * 2, [list(option) for option in options]]
    case = next(case for case in record["cases"] if [case["direction"], case["head_dim"], case["fa4c"]] == wanted)
    assert not case["higher_in"]["fa4c"]
    ours, theirs = side_by_side.per_tile([small], [large], tiles), case["per_tile"]["flash-attn-4"]
    return {name: (n, theirs[name]) for name, n in ours.items() if n > theirs[name]}
