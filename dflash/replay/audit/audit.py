"""The audit of a run: every probe over every row, and one false-alarm rate for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.draftfile.reader import DraftFile
from dflash.replay.audit.bets import holm
from dflash.replay.audit.choices import Choices
from dflash.replay.audit.decisions import decisions
from dflash.replay.audit.draft_law import DraftLaw
from dflash.replay.audit.drafted import Drafted, Independence
from dflash.replay.audit.draws import Draws
from dflash.replay.audit.emitted import Emitted, Favourites
from dflash.replay.audit.evidence import evidence
from dflash.replay.audit.mass import Mass
from dflash.replay.audit.prefixes import Prefixes
from dflash.replay.audit.probe import Probe
from dflash.replay.audit.residuals import Residuals
from dflash.replay.audit.target_law import TargetLaw
from dflash.replay.audit.trunk import Trunk
from dflash.replay.audit.verdict import Status, Verdict
from dflash.replay.result import Source
from dflash.replay.run import recorded_policy

FALSE_ALARMS = 1e-3
CORRECTION = (
    "At most {rate:g} of honest runs see any alarm. Comparisons allow for rounding alone and raise none. "
    "The p-values of the {count} statistical probes hold at every sample size (bets whose stake an honest "
    "run multiplies by 1/a with probability a at most) and are corrected together after Holm (1979)."
)

_PROBES: tuple[type[Probe], ...] = (
    Mass,
    TargetLaw,
    DraftLaw,
    Choices,
    Draws,
    Residuals,
    Prefixes,
    Trunk,
    Emitted,
    Favourites,
    Drafted,
    Independence,
)


@dataclass(frozen=True, slots=True)
class Audit:
    """What every probe found in one run.

    Attributes:
        false_alarms: the largest share of honest runs that see any alarm.
    """

    run_id: str
    sources: tuple[Source, ...]
    recorded: str
    requests: int
    false_alarms: float
    correction: str
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether no probe failed."""
        return all(verdict.status is not Status.FAILED for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Return the form of `schemas/replay_audit_v1.schema.json`."""
        return {
            "run_id": self.run_id,
            "files": [source._asdict() for source in self.sources],
            "requests": self.requests,
            "recorded_policy": self.recorded,
            "passed": self.passed,
            "false_alarms": self.false_alarms,
            "correction": self.correction,
            "probes": [verdict.to_dict() for verdict in self.verdicts],
        }


def audit(
    files: Sequence[DraftFile],
    *,
    false_alarms: float = FALSE_ALARMS,
    progress: Callable[[], None] = lambda: None,
) -> Audit:
    """Hold a run against its own evidence.

    Args:
        files: of one run, in order.
        false_alarms: the largest share of honest runs that may see any alarm.
        progress: called after each row group of each of the two readings.
    """
    policy = recorded_policy(files[0])
    probes = [kind() for kind in _PROBES]
    for file in files:
        for group in evidence(file, policy):
            for part in group:
                for probe in probes:
                    probe.look(part)
            progress()
    verdicts = [decisions(files, progress), *_judged(probes, false_alarms)]
    betting = sum(probe.p_value() is not None for probe in probes)
    return Audit(
        run_id=files[0].run_id,
        sources=tuple(Source(str(file.path), file.part, file.content_digest) for file in files),
        recorded=str(policy),
        requests=sum(file.requests for file in files),
        false_alarms=false_alarms,
        correction=CORRECTION.format(rate=false_alarms, count=betting),
        verdicts=tuple(verdicts),
    )


def _judged(probes: Sequence[Probe], false_alarms: float) -> list[Verdict]:
    """Correct the p-values together, then let every probe speak."""
    p_values = {place: p for place, probe in enumerate(probes) if (p := probe.p_value()) is not None}
    alarms = dict(zip(p_values, holm(list(p_values.values()), false_alarms), strict=True))
    threshold = false_alarms / max(1, len(p_values))
    return [probe.verdict(alarms.get(place, False), threshold) for place, probe in enumerate(probes)]
