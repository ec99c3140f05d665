"""Rows of a draft file as lines for other programs: ndjson and csv."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

Row = Mapping[str, Any]


def write_ndjson(rows: Iterable[Row], stream: TextIO) -> None:
    """One JSON object a row; -inf is null, bytes are base64, times RFC 3339."""
    for row in rows:
        values = {name: plain(value) for name, value in row.items()}
        stream.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(rows: Iterable[Row], names: Sequence[str], stream: TextIO) -> None:
    """A header line and one line a row; lists are JSON, null is empty."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(plain(row[name])) for name in names])


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | bool) else value
