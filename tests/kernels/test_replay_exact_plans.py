"""In `replay-exact` a launch computes the same for a row whatever cache and batch it is in."""

from __future__ import annotations

import pytest

from dflash.kernels.attention_plan import plan
from dflash.kernels.product_plan import product_plan

HEADS = [(1, 3, 64), (3, 3, 64), (8, 4, 128), (2, 5, 96)]
WEIGHTS = [(1536, 576), (49152, 576), (4096, 4096), (128256, 2048), (576, 1536), (4096, 14336)]


@pytest.mark.parametrize("queries", [8, 64])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_looks_at_no_capacity_and_no_other_lane(heads: tuple[int, int, int], queries: int) -> None:
    """Tiles may load earlier or later; the grid has room for all chunks of all lanes."""
    found = set()
    for lanes in (1, 3, 8, 64):
        for capacity in (64, 1024, 65536):
            made = plan(lanes, queries, *heads, capacity, "replay-exact", None)
            assert made.grid_items == lanes * made.max_parts
            found.add(made._replace(grid_items=0, tile=made.tile._replace(stages=0, prefetch=0)))
    assert len(found) == 1


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("product", ["qkv", "gate-up", "rows"])
def test_products_look_at_the_weight_alone(product: str, weight: tuple[int, int]) -> None:
    columns, depth = weight
    found = {
        product_plan(product, rows, columns // 2, depth, "replay-exact", None)._replace(row_tiles=0)
        for rows in (1, 8, 64, 127, 128, 192, 255, 256, 512, 4096)
    }
    assert len(found) == 1
