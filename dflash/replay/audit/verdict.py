"""What a probe says in the end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

LISTED = 5


class Status(StrEnum):
    """How a probe ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNTESTED = "not tested"


class Fault(NamedTuple):
    """One place that contradicts the recording's own evidence; `row` is a row's kind and anchor position."""

    file: str
    request_id: str
    row: str
    place: str
    what: str
    expected: str
    found: str


class Rate(NamedTuple):
    """How often an event happened, and how often it should have.

    Attributes:
        detectable: the error of `expected` that nine files of ten with it would have betrayed.
    """

    event: str
    observations: int
    expected: float
    found: float
    detectable: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one probe found.

    Attributes:
        places: comparisons made, or observations.
        faults: how many of them are wrong.
        near_ties: how many differ where rounding may have decided.
        p_value: of a statistical probe.
        distance: total variation between what happened and what was claimed, where `rates` cover all cases.
        sampling_error: the distance that honest runs of this size have on average.
        power: what the probe would have found.
        reasons: why it could not look, here or there.
        causes: what the faults look like.
    """

    probe: str
    question: str
    status: Status
    places: int
    faults: int = 0
    near_ties: int = 0
    listed: tuple[Fault, ...] = ()
    p_value: float | None = None
    rates: tuple[Rate, ...] = ()
    distance: float | None = None
    sampling_error: float | None = None
    power: str = ""
    reasons: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the form of `schemas/replay_audit_v1.schema.json`."""
        return {
            "probe": self.probe,
            "question": self.question,
            "status": str(self.status),
            "places": self.places,
            "faults": self.faults,
            "near_ties": self.near_ties,
            "p_value": self.p_value,
            "distance": self.distance,
            "sampling_error": self.sampling_error,
            "power": self.power,
            "reasons": list(self.reasons),
            "causes": list(self.causes),
            "rates": [rate._asdict() for rate in self.rates],
            "listed": [fault._asdict() for fault in self.listed],
        }
