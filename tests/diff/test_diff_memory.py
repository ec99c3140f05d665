"""Memory of a comparison stays bounded, whatever the number of requests and their order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drifted import head
from sample_drafts import tables

from dflash.draftfile.writer import DraftFileWriter

TOPK, ROUNDS, NODES, KINDS = 16, 16, 5, 64
# the high-water mark of this program; getrusage would count the process that started it
PEAK = (
    "import re, sys; from pathlib import Path; from dflash.cli.main import run; code = run(sys.argv[1:]); "
    "status = Path('/proc/self/status').read_text(); "
    "print(code, 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]), file=sys.stderr)"
)


def widened(table: pa.Table, seed: int) -> pa.Table:
    """The same rows with lists of TOPK logits instead of four."""
    rng = np.random.default_rng(seed)
    names = ["slot_topk_token", "slot_topk_logit", "draft_topk_token", "draft_topk_logit"]
    slots = table["slot_choice"].combine_chunks().value_lengths().to_numpy()
    for name in [*names, "draft_topk_target_logit", "draft_lse"]:
        field = table.schema.field(name)
        sizes = slots * (1 if name == "draft_lse" else TOPK)
        values: Any = rng.normal(size=int(sizes.sum())).astype(np.float32)
        if name.endswith("token"):
            values = np.concatenate([rng.permutation(128)[:TOPK] for _ in range(int(slots.sum()))])
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        inner = pa.array(values).cast(field.type.value_type)
        column = pa.ListArray.from_arrays(offsets, inner, type=field.type)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def write_run(path: Path, order: Iterable[int], drift: float) -> None:
    """One of KINDS tables a request, under its own name and prompt."""
    kinds = [widened(tables(seed, 1, rounds=ROUNDS, nodes=NODES)[0], seed) for seed in range(KINDS)]
    kinds = [_moved(table, drift) for table in kinds]
    settings = head(store_topk=TOPK, features={"mode": "none"})
    with DraftFileWriter(path, settings, run_id=path.stem) as writer:
        for number in order:
            table = kinds[number % KINDS]
            prompt = [f"prompt {number}"] + [None] * (table.num_rows - 1)
            named = {"request_id": [f"r{number}"] * table.num_rows, "prompt_text": prompt}
            for name, values in named.items():
                index = table.schema.get_field_index(name)
                column = pa.array(values, pa.string())
                table = table.set_column(index, table.schema.field(name), column)
            writer.write_request(table)
        writer.finish()


def _moved(table: pa.Table, drift: float) -> pa.Table:
    index = table.schema.get_field_index("slot_topk_logit")
    field, column = table.schema.field(index), table.column(index).combine_chunks()
    inner = pa.array(column.values.to_numpy(zero_copy_only=False) + np.float32(drift))
    return table.set_column(index, field, pa.ListArray.from_arrays(column.offsets, inner, type=field.type))


def peak(*words: str) -> tuple[int, int, dict[str, Any]]:
    """Exit code, peak memory in bytes and document of a comparison in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "diff", *words, "--json"], capture_output=True, text=True, check=True
    )
    code, size = done.stderr.split()
    return int(code), int(size), json.loads(done.stdout)


@pytest.mark.evidence
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_ten_thousand_requests_under_500_mb(tmp_path: Path, shuffled: bool) -> None:
    order = np.random.default_rng(1).permutation(10_000) if shuffled else np.arange(10_000)
    write_run(tmp_path / "a.parquet", range(10_000), 0.0)
    write_run(tmp_path / "b.parquet", order.tolist(), 0.01)
    code, size, told = peak(str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    assert code == 1
    assert told["sections"]["requests"]["aligned"] == 10_000
    assert told["sections"]["requests"]["rows"]["a"]["compared"] == 10_000 * ROUNDS
    print(f"peak {size / 1e6:.0f} MB")
    assert size < 500e6
