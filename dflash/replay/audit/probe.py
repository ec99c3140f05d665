"""The base of every probe: what it asks, where it may look, and what it says in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.verdict import Verdict


@dataclass(slots=True)
class Probe(ABC):
    """Asks one question of all rows of a run.

    Attributes:
        reasons: why it could not look at some of them.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    nothing: ClassVar[str]
    reasons: dict[str, None] = field(default_factory=dict)

    def look(self, evidence: Evidence) -> None:
        """Take in the rows of one context, unless something forbids it."""
        if (reason := self.untestable(evidence)) is not None:
            self.reasons[reason] = None
            return
        if (reason := self.limited(evidence)) is not None:
            self.reasons[reason] = None
        self.take(evidence)

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why these rows cannot be asked, if they cannot."""
        return None

    def limited(self, evidence: Evidence) -> str | None:
        """Return what is left out of rows that can be asked, if anything."""
        return None

    @abstractmethod
    def take(self, evidence: Evidence) -> None:
        """Take in rows that can be asked."""

    @abstractmethod
    def verdict(self, alarm: bool, threshold: float) -> Verdict:
        """Say what was found.

        Args:
            alarm: whether the p-value is too small, given those of all other probes.
            threshold: the largest p-value that is always too small.
        """

    def p_value(self) -> float | None:
        """Return the p-value; None for a probe that compares exactly or saw nothing."""
        return None

    def why(self, places: int) -> tuple[str, ...]:
        """Return the reasons, or what was missing if nothing could be looked at."""
        return tuple(self.reasons) or (() if places else (self.nothing,))
