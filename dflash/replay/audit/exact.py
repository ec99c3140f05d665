"""Probes that compare what must agree but for rounding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool
from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.probe import Probe
from dflash.replay.audit.verdict import LISTED, Fault, Status, Verdict


class Compared(NamedTuple):
    """Places of one row group that one comparison looked at.

    Attributes:
        what: is compared.
        unit: `slot`, `node` or `token`.
        row: `[m]` row of each place.
        place: `[m]` its index within the row.
        wrong: `[m]`; `near` `[m]` likewise, for what rounding may explain.
        expected: `[m]`; `found` `[m]` likewise.
    """

    what: str
    unit: str
    row: I64
    place: I64
    wrong: Bool
    near: Bool
    expected: np.ndarray[Any, Any]
    found: np.ndarray[Any, Any]


@dataclass(slots=True)
class ExactProbe(Probe):
    """Compares values that must agree but for rounding: it never accuses an honest file."""

    power: ClassVar[str]
    places: int = 0
    faults: int = 0
    near: int = 0
    listed: list[Fault] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    @abstractmethod
    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield the comparisons that these rows allow."""

    def take(self, evidence: Evidence) -> None:
        """Count the comparisons; list the first faults of each kind."""
        for compared in self.compare(evidence):
            wrong = compared.wrong & ~compared.near
            self.places += len(compared.row)
            self.faults += int(wrong.sum())
            self.near += int((compared.wrong & compared.near).sum())
            for place in np.flatnonzero(wrong)[: LISTED - self.seen.get(compared.what, 0)]:
                self.seen[compared.what] = self.seen.get(compared.what, 0) + 1
                self.listed.append(_fault(evidence, compared, int(place)))

    def causes(self) -> tuple[str, ...]:
        """Return what the faults look like."""
        return ()

    def verdict(self, alarm: bool, threshold: float) -> Verdict:
        """Fail at the first fault; see `Probe.verdict`."""
        status = Status.UNTESTED if not self.places else Status.FAILED if self.faults else Status.PASSED
        return Verdict(
            self.name,
            self.question,
            status,
            self.places,
            self.faults,
            self.near,
            tuple(self.listed),
            power=self.power if self.places else "",
            reasons=self.why(self.places),
            causes=self.causes() if self.faults else (),
        )


def differing(
    evidence: Evidence,
    what: str,
    unit: str,
    places: I64,
    expected: F64,
    found: F64,
    slack: F64 | float = 0.0,
) -> Compared:
    """Compare numbers at flat slots or nodes `[m]`; a null on either side is not looked at.

    Args:
        unit: `slot` or `node`.
        slack: by how much they may differ.
    """
    there = ~(np.isnan(expected) | np.isnan(found))
    with np.errstate(invalid="ignore"):
        wrong = (expected != found) & ~(np.abs(expected - found) <= slack)
    row, index = (_node_places if unit == "node" else _slot_places)(evidence, places[there])
    near = np.zeros(int(there.sum()), dtype=bool)
    return Compared(what, unit, row, index, wrong[there], near, expected[there], found[there])


def at_most(
    evidence: Evidence, what: str, unit: str, places: I64, bound: F64, found: F64, slack: F64 | float
) -> Compared:
    """Compare numbers at flat slots or nodes with their upper bounds; see `differing`."""
    return differing(evidence, what, unit, places, np.where(found > bound, bound, found), found, slack)


def _slot_places(evidence: Evidence, slots: I64) -> tuple[I64, I64]:
    return evidence.slot_round[slots], evidence.slot_index[slots]


def _node_places(evidence: Evidence, nodes: I64) -> tuple[I64, I64]:
    return evidence.rounds.node_round[nodes], evidence.rounds.node_index[nodes]


def _fault(evidence: Evidence, compared: Compared, place: int) -> Fault:
    return Fault(
        *evidence.place(int(compared.row[place])),
        f"{compared.unit} {int(compared.place[place])}",
        compared.what,
        _text(compared.expected[place]),
        _text(compared.found[place]),
    )


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
