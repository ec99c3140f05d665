"""What a committed token takes in a file: live rows of chains of five, by the default target and drafter."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import draft_runs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_real_model import PROMPTS, target

from dflash.draftfile.layout import parquet_writer

__all__ = ["target"]

pytestmark = [pytest.mark.evidence, pytest.mark.network]

# bytes at tau 2, by temperature, without top logits and features
GOALS = {0.0: 120, 0.8: 160}
WITH_TOPS = 1200
TAU = 2.0


def group(column: str) -> str:
    """What a column of the file counts for."""
    if column.startswith("feature_"):
        return "features"
    return "tops" if "_topk_" in column else "rows"


def sizes(table: pa.Table) -> Counter[str]:
    """Compressed bytes of a row group's columns, as a draft file has them, by group."""
    file, found = io.BytesIO(), Counter[str]()
    with parquet_writer(file, table.schema) as writer:
        writer.write_table(table)
    row_group = pq.read_metadata(io.BytesIO(file.getvalue())).row_group(0)
    for place in range(row_group.num_columns):
        column = row_group.column(place)
        found[group(column.path_in_schema.split(".")[0])] += column.total_compressed_size
    return found


@pytest.mark.parametrize("temperature", GOALS)
def test_live_rows_are_small(target: Any, tmp_path: Path, temperature: float) -> None:
    path = draft_runs.record(
        target, PROMPTS, tmp_path / "run.parquet", drafter="default", length=5, branches=1,
        temperature=temperature, max_new_tokens=96, lanes=5,
    )  # fmt: skip
    table = pq.read_table(path)
    live = table.filter(pc.equal(table["kind"], 0)).combine_chunks()
    rounds = live.num_rows
    tau = 1 + pc.sum(pc.list_value_length(live["accepted_nodes"])).as_py() / rounds
    # a row group has fifty thousand rows, in which what the first one takes alone is nothing
    first, whole = sizes(live.slice(0, 1)), sizes(live)
    each = {name: (whole[name] - first[name]) / (rounds - 1) / TAU for name in whole}
    own = each["rows"]
    print(
        f"T={temperature}: {rounds} rounds, tau {tau:.2f}; bytes a token at tau {TAU:g}: {own:.0f}, "
        f"with 16 top logits {own + each['tops']:.0f}, fingerprints {each['features']:.0f} more"
    )
    assert own <= GOALS[temperature]
    assert own + each["tops"] <= WITH_TOPS
