"""Columns of features: every row's own tokens, however they came and however many at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.engine.recorder import feature_columns

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=6)


@pytest.mark.parametrize("block", [1, 40, 1 << 18])
@given(sizes=SIZES, counts=st.lists(st.integers(1, 3), max_size=9), scaled=st.booleans(), data=st.data())
def test_each_row_has_the_lines_of_its_tokens(
    block: int, sizes: list[int], counts: list[int], scaled: bool, data: st.DataObject
) -> None:
    """Some rows of several parts in any order, the same whatever is joined on the way."""
    total = sum(sizes)
    starts = np.cumsum([0, *counts])
    rows = [place for place, count in enumerate(counts) if starts[place] + count <= total]
    rows = data.draw(st.permutations(rows))[: data.draw(st.integers(0, len(rows)))]
    lines = np.arange(total * 5, dtype=np.uint8).reshape(total, 5)
    factors = np.arange(total * 2, dtype=np.float32).reshape(total, 2)
    ends = np.cumsum(sizes)[:-1]
    parts = [
        (values, scales if scaled else None)
        for values, scales in zip(np.split(lines, ends), np.split(factors, ends), strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_columns, "BLOCK", block)
        mine, lengths = starts[rows].astype(np.int64), np.array(counts, np.int64)[rows]
        found = feature_columns.feature_columns(parts, mine, lengths, "int8")
    for name, source in (("feature_values", lines), ("feature_scale", factors if scaled else None)):
        if source is None:
            assert name not in found
            continue
        expected = [source[starts[row] : starts[row] + counts[row]].reshape(-1).tolist() for row in rows]
        values, sizes_found = found[name]
        assert [part.tolist() for part in np.split(values, np.cumsum(sizes_found)[:-1])] == (expected or [[]])
