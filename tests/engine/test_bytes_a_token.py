"""What a committed token takes in a file: live rows of chains of five, by the default target and drafter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import draft_runs
import pyarrow.parquet as pq
import pytest
from test_real_model import PROMPTS, target

__all__ = ["target"]

pytestmark = [pytest.mark.evidence, pytest.mark.network]

# columns that are no live row's: null there, and of prompts else
OF_PROMPTS = ("prompt_tokens", "prompt_text", "request_info")
# bytes at tau 2, by temperature, without top logits and features
GOALS = {0.0: 120, 0.8: 160}
WITH_TOPS = 1200
TAU = 2.0


def group(column: str) -> str:
    """What a column of the file counts for."""
    if column.startswith("feature_"):
        return "features"
    if "_topk_" in column:
        return "tops"
    return "prompts" if column in OF_PROMPTS else "rows"


def sizes(path: Path) -> Counter[str]:
    """Compressed bytes of a file's columns, by group."""
    found: Counter[str] = Counter()
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
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
    live = [row for row in draft_runs.rows(path) if row["kind"] == 0]
    tau = 1 + sum(len(row["accepted_nodes"]) for row in live) / len(live)
    # all that a round takes, shared by the tokens that it would commit
    each = {name: size / len(live) / TAU for name, size in sizes(path).items()}
    own = each["rows"]
    print(
        f"T={temperature}: {len(live)} rounds, tau {tau:.2f}; bytes a token at tau {TAU:g}: {own:.0f}, "
        f"with 16 top logits {own + each['tops']:.0f}, fingerprints {each['features']:.0f} more"
    )
    assert own <= GOALS[temperature]
    assert own + each["tops"] <= WITH_TOPS
