"""What the benchmark of a recorder hands over: all that it says, and nothing that compression finds twice."""

from __future__ import annotations

import pytest

from dflash.bench.handover import measure
from dflash.bench.handover_rows import TAPS, Case


@pytest.mark.parametrize(("features", "length"), [(None, 0), ("int8", 0), ("int8", 7)])
def test_it_tells_what_every_thread_took(features: str | None, length: int) -> None:
    case = Case(4, 2, length, 8, 16, features)
    cost = measure(case)
    assert cost.rows > case.requests * case.rounds / 2
    assert {name.split("_")[0] for name in cost.threads_us} <= {
        "rows", "closing", "journal", "disk", "groups", "joins", "digests", "file", "sums"
    }  # fmt: skip
    assert {"rows", "journal_0", "groups_0"} <= cost.threads_us.keys() or not cost.threads_us
    # a token a row at least, whose codes hold more than six bits each
    assert cost.file_bytes > (0 if features is None else TAPS * 6 / 8)
