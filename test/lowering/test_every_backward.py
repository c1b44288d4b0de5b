"""Every example has a backward that reaches the tile level, plain and deterministic, for all head dims."""

import compiled
import pytest

EXAMPLES = sorted(path.stem for path in compiled.EXAMPLES.glob("*.mlir"))


@pytest.mark.parametrize("head_dim", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (40, 40)], ids=str)
@pytest.mark.parametrize("example", EXAMPLES)
def test_tile_level(example, head_dim):
    for deterministic in (False, True):
        text = compiled.level(f"{example}.mlir", "tile", direction="bwd", head_dim=head_dim, deterministic=deterministic)
        assert text.count('role = "output"') == (4 if example == "alibi" else 3)
        assert ("tile.global_add" in text) <= (not deterministic or example == "alibi")
