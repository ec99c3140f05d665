"""Requests of a draft file, compared by all that a second recording must repeat."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from dflash.draftfile.columns import COLUMNS
from dflash.draftfile.reader import open_draft_file

LASTING = [column.name for column in COLUMNS if not column.volatile]


def requests_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by request, in file order, without the volatile columns."""
    rows = [row for table in open_draft_file(path).tables() for row in table.to_pylist()]
    kept = [{name: row[name] for name in LASTING if name in row} for row in rows]
    return {name: list(part) for name, part in itertools.groupby(kept, lambda row: row["request_id"])}
