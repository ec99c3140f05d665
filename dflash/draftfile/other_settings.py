"""How many requests ran under other settings than the header's: a line of a prompt file may set its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dflash.draftfile.header import Header
from dflash.draftfile.summary import Kind

OTHER_SETTINGS = "dflash.other_settings"
REQUESTS = "requests"


class OtherSettings:
    """Counts, while rows are read or written, the requests whose `request_info` differs from the header.

    Args:
        header: With the sampling and the seed of the run.
    """

    def __init__(self, header: Header) -> None:
        self._own = _settings({"sampling": header.sampling, "seed": header.seed})
        self._counts: Counter[str] = Counter({REQUESTS: 0})

    def add(self, table: pa.Table) -> None:
        """Count the requests of a table that has the format's columns."""
        # other columns may hold many bytes, and none of them counts
        told = table["request_info"].filter(pa.array(table["kind"].to_numpy() == Kind.PREFILL))
        for text in told.to_pylist():
            found = _settings(_read(text))
            differing = [name for name, value in found.items() if value != self._own.get(name, value)]
            self._counts.update(differing + [REQUESTS] * bool(differing))

    def to_dict(self) -> dict[str, int]:
        """How many requests differ in each setting, and as `requests` how many in any."""
        return dict(sorted(self._counts.items()))


def _read(text: str | None) -> Mapping[str, Any]:
    """The `request_info`, empty if it says nothing."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _settings(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are told, those that cut nothing left out."""
    sampling = info.get("sampling")
    told = {**(sampling if isinstance(sampling, dict) else {}), "seed": info.get("seed")}
    whole = {"top_k": 0, "top_p": 1.0}
    return {
        name: whole[name] if value is None else value
        for name, value in told.items()
        if value is not None or name in whole
    }
