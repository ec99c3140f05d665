"""The result of a replay: one row a policy, and the report of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dflash.policy.registry import Policy
from dflash.policy.rule import Exactness
from dflash.replay.branching import BRANCHING_DEFINITIONS, Branches
from dflash.replay.calibration import CALIBRATION_DEFINITIONS, Calibrated
from dflash.replay.check import LISTED, Check, Failure, Tie
from dflash.replay.cost import COST_DEFINITIONS, CostModel
from dflash.replay.definitions import DEFINITIONS, LOSSY
from dflash.replay.knee import KNEE_DEFINITIONS, Knee, knee
from dflash.replay.near_ties import NearTie
from dflash.replay.statistics import Interval, Resampled, at_least, tau
from dflash.replay.tally import Tally
from dflash.replay.work import SPEED_DEFINITIONS, Speed

SCHEMA = "dflash.replay/1"
_AGAINST_PLAIN = ("speed_up", "interval", "difference", "difference_interval", "best_share")
_OF_ROUNDS = ("tokens_per_second", "round_us")


class Source(NamedTuple):
    """One file that was replayed."""

    path: str
    part: int
    content_digest: str


class Acceptance(NamedTuple):
    """Acceptance at one position, from 1; a rate without rounds is None."""

    position: int
    accepted: float
    marginal: float | None
    interval: Interval | None
    reached: float
    conditional: float | None
    conditional_interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class WalkFacts:
    """What only walks have; at most `LISTED` near-ties are listed.

    Attributes:
        clipped: rounds for which the control wanted a larger shape than was recorded.
    """

    covered: float | None
    left_trunk: int
    clipped: int
    near_ties: int
    listed: tuple[NearTie, ...]


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What one policy does on the rounds; `DEFINITIONS` says what each number means."""

    policy: str
    definition: Mapping[str, Any]
    recorded: bool
    exactness: str
    walk: str
    lossless: bool
    remarks: tuple[str, ...]
    rounds: float
    tau: float | None
    interval: Interval | None
    difference: float | None
    difference_interval: Interval | None
    acceptance: tuple[Acceptance, ...]
    lengths: tuple[int, ...]
    tokens: int | None
    emitted: int | None
    drafted: int | None
    drafted_per_token: float | None
    changed_rounds: int | None
    off_choice_rounds: int | None
    unknown_bonus: int
    coin_ties: int
    emitted_per_round: float | None
    emitted_interval: Interval | None
    walked: WalkFacts | None
    knee: Knee | None
    branching: Branches | None
    calibration: tuple[Calibrated, ...] | None
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether every recorded decision was reproduced; at most `LISTED` failures of a kind are listed."""

    passed: bool
    requests: int
    rounds: int
    failures: Mapping[str, int]
    listed: tuple[Failure, ...]
    coin_ties: int
    ties: tuple[Tie, ...]
    dense_near_ties: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Everything that `dflash replay` prints of one run."""

    run_id: str
    sources: tuple[Source, ...]
    recorded: Policy
    requests: int
    rows: tuple[PolicyRow, ...]
    check: CheckReport | None
    cost: CostModel | None

    def speed(self, row: PolicyRow) -> dict[str, Any] | None:
        """Return the predicted speed of one policy, None for each number that the times do not tell."""
        if row.speed is None or self.cost is None:
            return None
        found: dict[str, Any] = _plain(row.speed)
        known, timed = self.cost.plain_timed, self.cost.timed(row.speed.nodes)
        gone = {} if known else dict.fromkeys(_AGAINST_PLAIN)
        return found | gone | ({} if known or timed else dict.fromkeys(_OF_ROUNDS))

    def to_dict(self) -> dict[str, Any]:
        """Return one element of `runs` in the document."""
        return {
            "run_id": self.run_id,
            "files": [source._asdict() for source in self.sources],
            "requests": self.requests,
            "recorded_policy": str(self.recorded),
            "policies": [_plain(asdict(row)) | {"speed": self.speed(row)} for row in self.rows],
            "check": None if self.check is None else _plain(asdict(self.check)),
            "cost": None if self.cost is None else self.cost.to_dict(),
        }


def document(runs: Sequence[Replay]) -> dict[str, Any]:
    """Return the document of schema `dflash.replay/1`."""
    return {
        "schema": SCHEMA,
        "runs": [run.to_dict() for run in runs],
        "definitions": definitions(runs),
    }


def definitions(runs: Sequence[Replay]) -> dict[str, str]:
    """Return what the numbers of these replays mean."""
    rows = [row for run in runs for row in run.rows]
    words = {**DEFINITIONS, **KNEE_DEFINITIONS, **BRANCHING_DEFINITIONS}
    if any(row.calibration is not None for row in rows):
        words |= CALIBRATION_DEFINITIONS
    if any(run.cost is not None for run in runs):
        words |= {**SPEED_DEFINITIONS, **COST_DEFINITIONS}
    return words


def policy_row(
    policy: Policy, recorded: Policy, tally: Tally, first: Tally, resampled: Resampled
) -> PolicyRow:
    """Sum up one policy on live rounds.

    Args:
        first: the tally of the first policy, from which differences are taken.
    """
    ruled = policy.rule == recorded.rule and policy.control == recorded.control
    same = ruled and policy.shape.filled(recorded.shape) == recorded.shape
    row = tally_row(policy, tally, resampled)
    mean, base = row.tau, tau(first.lengths().sum(axis=0))
    return replace(
        row,
        recorded=same,
        exactness="live" if same else "re-judge",
        difference=None if mean is None or base is None or tally is first else mean - base,
        difference_interval=None if tally is first else resampled.difference,
        emitted=tally.emitted if same else None,
        emitted_per_round=tally.emitted / row.rounds if same and row.rounds else None,
        changed_rounds=tally.changed,
    )


def tally_row(policy: Policy, tally: Tally, resampled: Resampled) -> PolicyRow:
    """Sum up what a tally knows of a policy; the rest is open."""
    lengths, reached = tally.lengths().sum(axis=0), at_least(tally.reached().sum(axis=0))
    lossless = all(policy.is_lossless(context) for context in tally.contexts)
    walk = _walk(policy, tally)
    tokens = int(lengths @ np.arange(1, len(lengths) + 1))
    return replace(
        open_row(policy),
        walk=str(walk) if lossless or walk is not Exactness.REJUDGE else LOSSY,
        lossless=lossless,
        remarks=_remarks(policy, tally),
        rounds=int(lengths.sum()),
        tau=tau(lengths),
        interval=resampled.tau,
        acceptance=_acceptance(lengths, reached, resampled),
        lengths=tuple(lengths.tolist()),
        tokens=tokens,
        drafted=tally.nodes,
        drafted_per_token=tally.nodes / tokens if tokens else None,
        off_choice_rounds=tally.off_choice,
        unknown_bonus=tally.unknown_bonus,
        coin_ties=tally.coin_ties,
        knee=knee(lengths, len(reached), resampled.knee),
    )


def open_row(policy: Policy) -> PolicyRow:
    """Return a row of which only the policy is known."""
    return PolicyRow(
        policy=str(policy),
        definition=policy.to_dict(),
        recorded=False,
        exactness=str(Exactness.REJUDGE),
        walk=str(Exactness.REJUDGE),
        lossless=False,
        remarks=(),
        rounds=0,
        tau=None,
        interval=None,
        difference=None,
        difference_interval=None,
        acceptance=(),
        lengths=(),
        tokens=None,
        emitted=None,
        drafted=None,
        drafted_per_token=None,
        changed_rounds=None,
        off_choice_rounds=None,
        unknown_bonus=0,
        coin_ties=0,
        emitted_per_round=None,
        emitted_interval=None,
        walked=None,
        knee=None,
        branching=None,
        calibration=None,
        speed=None,
    )


def check_report(check: Check) -> CheckReport:
    """Close a check."""
    return CheckReport(
        passed=not check.failures,
        requests=check.requests,
        rounds=check.rounds,
        failures=dict(sorted(check.failures.items())),
        listed=tuple(check.listed),
        coin_ties=len(check.ties),
        ties=tuple(check.ties[:LISTED]),
        dense_near_ties=check.dense_near_ties,
    )


def _acceptance(lengths: Any, reached: Any, resampled: Resampled) -> tuple[Acceptance, ...]:
    rounds, accepted = int(lengths.sum()), at_least(lengths)
    rows = []
    for index, tried in enumerate(reached.tolist()):
        count = int(accepted[index]) if index < len(accepted) else 0
        interval = resampled.marginal[index] if index < len(resampled.marginal) else None
        rate = count / rounds if rounds else None
        given = resampled.conditional[index] if index < len(resampled.conditional) else None
        share = count / tried if tried else None
        rows.append(Acceptance(index + 1, count, rate, interval, tried, share, given))
    return tuple(rows)


def _walk(policy: Policy, tally: Tally) -> Exactness:
    found = {policy.exactness_in(context, tally.branching) for context in tally.contexts}
    ranked = [Exactness.REJUDGE, Exactness.LAW, Exactness.PATH]
    return min(found, key=ranked.index, default=policy.rule.exactness)


def _remarks(policy: Policy, tally: Tally) -> tuple[str, ...]:
    return tuple(sorted({remark for context in tally.contexts for remark in policy.remarks(context)}))


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return list(value)
    if hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
