"""What is asked of a comparison, and which columns it takes part in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dflash.diff.errors import ColumnNotCompared
from dflash.diff.pairing import On
from dflash.diff.thresholds import Threshold
from dflash.diff.tolerance import Tolerances
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.run import Run

# what brings rows together; a change in one of them is a row without a partner
ALIGNING = ("kind", "round", "anchor_position")
# read even when ignored: requests, rows and nodes are aligned by them
STRUCTURE = (
    *ALIGNING,
    *("request_id", "prompt_tokens", "prompt_text", "request_info", "node_token", "node_parent"),
    *("accepted_nodes", "bonus_token", "emitted", "truncated_by", "slot_gap"),
)
EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that changes what a comparison says.

    Attributes:
        ignore: columns that do not count.
        timing: also compare the volatile columns.
        limit: examples listed in a section.
    """

    on: On = On.ROUNDS
    tolerances: Tolerances = field(default_factory=Tolerances)
    ignore: frozenset[str] = frozenset()
    timing: bool = False
    thresholds: tuple[Threshold, ...] = ()
    limit: int = EXAMPLES


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of two runs.

    Attributes:
        compared: in both, neither ignored nor volatile (unless timing is asked for).
        only_a, only_b: in one of them.
        ignored: as asked.
        volatile: left out because they hold times.
        types: user columns of unequal types: name, type in A, type in B.
    """

    compared: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    ignored: tuple[str, ...]
    volatile: tuple[str, ...]
    types: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, a: Run, b: Run, settings: Settings) -> Columns:
        """Sort the columns.

        Raises:
            ColumnNotCompared: a column to ignore, or with a tolerance, that neither run has.
        """
        names = [_names(run) for run in (a, b)]
        every = list(dict.fromkeys(names[0] + names[1]))
        for name in sorted(settings.ignore):
            if name not in every:
                raise ColumnNotCompared(name, every)
        types = [run.files[0].schema for run in (a, b)]
        both = [name for name in every if name in names[0] and name in names[1]]
        odd = [name for name in both if types[0].field(name).type != types[1].field(name).type]
        volatile = [name for name in both if name in COLUMN and COLUMN[name].volatile and not settings.timing]
        out = {*settings.ignore, *volatile, *odd}
        return cls(
            tuple(name for name in both if name not in out),
            tuple(name for name in names[0] if name not in names[1]),
            tuple(name for name in names[1] if name not in names[0]),
            tuple(sorted(settings.ignore)),
            tuple(volatile),
            tuple((name, str(types[0].field(name).type), str(types[1].field(name).type)) for name in odd),
        )

    @property
    def differ(self) -> bool:
        return bool(self.only_a or self.only_b or self.types)

    def read(self, run: Run) -> list[str]:
        """What to read of a run, in its own order."""
        wanted = {*self.compared, *STRUCTURE}
        return [name for name in _names(run) if name in wanted]

    def to_dict(self) -> dict[str, Any]:
        return {
            "compared": len(self.compared),
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "ignored": list(self.ignored),
            "volatile": list(self.volatile),
            "other_types": [dict(zip(("column", "a", "b"), row, strict=True)) for row in self.types],
        }


def _names(run: Run) -> list[str]:
    first: Iterable[str] = run.files[0].schema.names
    return [name for name in first if all(name in file.schema.names for file in run.files)]
