"""The changes of all columns that are compared, by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash.diff.aligned import RAW, section_of
from dflash.diff.changes import ColumnChange, Example
from dflash.diff.tolerance import FLOATS, Tolerance, Tolerances
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.header import Header

# columns that name a request and say what it was asked, not what came out
_NAMES = ("request_id", "request_info")
_LIST_WISE = ("node_token", "node_parent", "accepted_nodes", "prompt_tokens")

_UNITS = {
    "K per slot": "logit",
    "K per expanded slot": "logit",
    "16 per token": "value",
    "128 feature values": "scale",
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """One entry a column."""

    changes: Mapping[str, ColumnChange]
    tolerances: Mapping[str, Tolerance]

    @classmethod
    def of(cls, names: Iterable[str], asked: Tolerances, a: Header, b: Header) -> Ledger:
        """Open an entry for every column."""
        names = list(names)
        changes = {name: ColumnChange(name, section_of(name), _unit(name)) for name in names}
        return cls(changes, {name: asked.of(name, a, b) for name in names if name in FLOATS})

    def get(self, name: str) -> ColumnChange | None:
        """The entry of a column; None if it is not compared."""
        return self.changes.get(name)

    def tolerance(self, name: str) -> Tolerance:
        return self.tolerances.get(name, Tolerance(0.0, 0.0))

    def of_section(self, section: str) -> list[ColumnChange]:
        return [change for change in self.changes.values() if change.section == section]

    @property
    def changed(self) -> bool:
        """Whether any bit changed that is not volatile."""
        return any(change.changed for change in self._weighty(()))

    @property
    def beyond(self) -> bool:
        """Whether anything that came out lies beyond the tolerance."""
        return any(change.beyond for change in self._weighty(_NAMES))

    def beyond_but(self, name: str) -> bool:
        """As `beyond`, one column left out."""
        return any(change.beyond for change in self._weighty((*_NAMES, name)))

    @property
    def beyond_law(self) -> bool:
        """As `beyond`, raw logits taken as log p."""
        return any(
            change.beyond_law if change.name in RAW else change.beyond for change in self._weighty(_NAMES)
        )

    def _weighty(self, without: Iterable[str]) -> Iterator[ColumnChange]:
        return (
            change
            for change in self.changes.values()
            if change.section != "timing" and change.name not in without
        )


def to_dict(change: ColumnChange, tolerance: Tolerance | None) -> dict[str, Any]:
    """Return one row of a section's table of columns."""
    return {
        "column": change.name,
        "unit": change.unit,
        "compared": change.compared,
        "changed": change.changed,
        "beyond_tolerance": change.beyond,
        "beyond_as_log_p": change.beyond_law if change.name in RAW else None,
        "largest_distance": change.largest,
        "atol": tolerance.atol if tolerance else None,
        "rtol": tolerance.rtol if tolerance else None,
        "example": _example(change.first),
    }


def _example(example: Example | None) -> dict[str, Any] | None:
    return None if example is None else {**example.where._asdict(), "a": example.a, "b": example.b}


def _unit(name: str) -> str:
    column = COLUMN.get(name)
    if column is None or not column.is_list or name in _LIST_WISE:
        return "row"
    return _UNITS.get(column.per, column.per)
