"""What a recording process does before the first rows come, so that these find loaded what they need.

Libraries load parts of themselves when these are first asked for.
"""

from __future__ import annotations

import numpy as np

# what the pickles of those that make rows would load
import dflash.engine.device.prompt_rows
import dflash.engine.device.rows  # noqa: F401
from dflash.draftfile.invariants import row_problems
from dflash.draftfile.rows import RequestRows
from dflash.draftfile.summary import Kind
from dflash.draftfile.view import Limits
from dflash.engine.recorder.totals import counted


def rehearse() -> None:
    """Make a table of one row, and look at it as at one of rows that are recorded."""
    rows = RequestRows("", features=True)
    rows.append({"kind": Kind.PREFILL, "truncated_by": "none", "node_logp": np.zeros(1, np.float32)})
    table = rows.table()
    counted(table, np.zeros(1, np.int64))
    # of a file it would lack columns
    row_problems(table.select(["kind", "truncated_by"]), Limits(padded=1, topk=1, sources=1))
