"""The cost model: how long a round takes, fitted to the timing columns of recordings or given as a profile.

round time = draft(length, branches, batch) + verify(nodes, batch, context)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.errors import DflashError
from dflash.policy.noise import F64
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.errors import CostMissing, CostUnreadable
from dflash.replay.monotone import non_negative
from dflash.replay.timings import Steps, read_steps

COST_DEFINITIONS = {
    "round time": "draft(length, branches, batch) + verify(nodes, batch, context); draft is draft_us, verify "
    "is round_us - draft_us: the target's forward, the decision and the commit",
    "fit": "least absolute residuals with terms of 0 or more, so that no time falls as its arguments grow",
    "residual": "median of |measured - fitted| over the forwards, also as a share of the median time",
}
# drafters that run one forward a drafted position
_AUTOREGRESSIVE = {"model"}
_ROUND, _POSITION, _FURTHER = "round", "position", "position of each further branch"
_REQUEST = "request of a round that drafts"
_ROUNDING = 1e-6
_BESIDE = "rounds take what they took beside those of another group of lanes, by which some were recorded"
_GROUPS = 6
_POINTS = 5


class Term(NamedTuple):
    """One addend of a fit: microseconds for each unit of what `of` names."""

    of: str
    us: float


class Residual(NamedTuple):
    """Forwards of like size: median times measured and fitted, and the median distance between the two."""

    size: float
    steps: int
    measured_us: float
    fitted_us: float
    residual_us: float


class Fit(NamedTuple):
    """One part of a round's time.

    Attributes:
        part: `draft` or `verify`.
        over: what the residuals are grouped by.
        share: the residual as a share of the median time, None if that is 0.
    """

    part: str
    over: str
    steps: int
    terms: tuple[Term, ...]
    residual_us: float
    share: float | None
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, slots=True)
class CostModel:
    """A step-time profile, where it comes from, and what it takes for granted.

    Attributes:
        source: `fitted`, or the profile's path.
        batch: requests a forward, at which policies are compared.
        fits: none for a given profile.
        untimed: rounds that the fit left out.
    """

    step_time: StepTime
    source: str
    batch: float
    fits: tuple[Fit, ...]
    assumptions: tuple[str, ...]
    untimed: int

    @property
    def plain_timed(self) -> bool:
        """Whether rounds without nodes were timed: one-token decoding, the base of every speed-up."""
        return self.step_time.verify_us.axes[0][0] <= 0

    def timed(self, nodes: float) -> bool:
        """Whether rounds of so many nodes, or of fewer and of more, were timed."""
        sizes = self.step_time.verify_us.axes[0]
        # a mean of counts differs in its last digits
        most = sizes[-1] if len(sizes) == 1 else np.inf
        return bool(sizes[0] - _ROUNDING <= nodes <= most + _ROUNDING)

    def to_dict(self) -> dict[str, Any]:
        """Return the form that JSON documents hold."""
        return {
            "source": self.source,
            "batch": self.batch,
            "step_time": self.step_time.to_dict(),
            "fits": [_fit_dict(fit) for fit in self.fits],
            "assumptions": list(self.assumptions),
            "untimed_rounds": self.untimed,
        }


def load_cost(path: Path, batch: float = 1.0) -> CostModel:
    """Read a step-time profile.

    Args:
        batch: requests a forward, at which policies are compared.

    Raises:
        CostMissing: no such file.
        CostUnreadable: no JSON, or no profile.
    """
    document = _profile(path)
    for key in ("draft_us", "verify_us"):
        if key not in document:
            raise CostUnreadable(str(path), f"found an object without {key}.")
    try:
        return CostModel(StepTime.from_dict(document), str(path), batch, (), (), 0)
    except DflashError as error:
        raise CostUnreadable(str(path), f"which this is not. {error}") from error


def _profile(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if text.strip() else None
    except FileNotFoundError as error:
        raise CostMissing(str(path)) from error
    except OSError as error:
        raise CostUnreadable(str(path), f"which cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CostUnreadable(str(path), f"found something else: {error}.") from error
    if not text.strip():
        raise CostUnreadable(str(path), "found an empty file.")
    if not isinstance(document, dict):
        found = "a list" if isinstance(document, list) else json.dumps(document)
        raise CostUnreadable(str(path), f"found {found}.")
    return document


def fit_cost(files: Sequence[DraftFile], batch: float | None = None) -> CostModel:
    """Fit a cost model to the live rounds of recordings with one target, drafter and machine.

    Args:
        batch: requests a forward, at which policies are compared; what was recorded most unless given.

    Raises:
        NoTimings: no round has times.
    """
    steps = read_steps(files)
    families = {str(drafter["family"]) for file in files for drafter in file.header.drafters}
    draft_us, draft, said = _draft(steps, bool(families & _AUTOREGRESSIVE))
    verify_us, verify, more = _verify(steps)
    usual = float(np.median(steps.batch)) if batch is None else batch
    beside = any(file.header.engine.get("overlap") == "groups" for file in files)
    more += [_BESIDE] if beside else []
    assumptions = (*said, *more, *_beyond(steps, usual))
    return CostModel(
        StepTime(draft_us, verify_us), "fitted", usual, (draft, verify), assumptions, steps.untimed
    )


def _draft(steps: Steps, autoregressive: bool) -> tuple[Grid, Fit, list[str]]:
    length, wider = steps.length, steps.length * (steps.branches - 1)
    drafted, said = length > 0, []
    columns = {_ROUND: np.ones_like(length), _POSITION: length, _FURTHER: wider}
    if len(np.unique(length)) < 2 and drafted.any():
        del columns[_ROUND if autoregressive else _POSITION]
        how = "grows in proportion to the length" if autoregressive else "does not depend on the length"
        said.append(f"draft time {how}: only length {length[0]:g} was recorded")
    if drafted.any() and len(np.unique(steps.branches[drafted])) < 2:
        del columns[_FURTHER]
        seen = f"{steps.branches[drafted][0]:g}"
        said.append(f"draft time does not depend on the branches: only {seen} was recorded")
    batches = _batches(steps.batch[drafted]) if drafted.any() else (1.0,)
    if len(batches) > 1:
        columns[_REQUEST] = np.where(drafted, steps.batch, 0.0)
    weights = _weights(columns, steps.draft_us)
    # one position is where a round begins to draft
    lengths = tuple(sorted({0.0, min(1.0, float(length.max())), float(length.max())}))
    axes = (lengths, _axis(1.0, steps.branches.max()), batches)
    at, branches, batch = np.meshgrid(*axes, indexing="ij")
    terms = {_ROUND: np.ones_like(at), _POSITION: at, _FURTHER: at * (branches - 1)}
    us = _predicted(weights, terms | {_REQUEST: np.where(at > 0, batch, 0.0)})
    fitted = _predicted(weights, columns)
    fit = _fit("draft", "length", weights, length, steps.draft_us, fitted)
    return Grid(axes, tuple(us.ravel().tolist())), fit, said


def _verify(steps: Steps) -> tuple[Grid, Fit, list[str]]:
    knot = float(np.median(np.unique(steps.batch * (steps.nodes + 1))))
    weights = _weights(_verify_terms(steps.nodes, steps.batch, steps.context, knot), steps.verify_us)
    nodes = np.quantile(steps.nodes, np.linspace(0, 1, _POINTS))
    if nodes[0] < nodes[-1]:
        bends = knot / np.unique(steps.batch) - 1
        # plain decoding, too, is what was fitted, and not where a steep stretch of the grid would lead
        nodes = np.concatenate(([0.0], nodes, bends[bends > 0]))
    axes = (
        tuple(np.unique(nodes).tolist()),
        _batches(steps.batch),
        _axis(0.0, steps.context.max()),
    )
    places = np.meshgrid(*axes, indexing="ij")
    us = _predicted(weights, _verify_terms(*places, knot))
    fitted = _predicted(weights, _verify_terms(steps.nodes, steps.batch, steps.context, knot))
    fit = _fit("verify", "nodes", weights, steps.nodes, steps.verify_us, fitted)
    least, most = steps.nodes.min(), steps.nodes.max()
    said = []
    if least == most:
        said.append(f"verifying takes as long for any number of nodes: only {least:g} was recorded")
    elif least > 0:
        said.append(
            f"one-token decoding, the base of every speed-up, is extrapolated from {least:g} nodes and more; "
            "a run with --drafter none beside the others would measure it"
        )
    return Grid(axes, tuple(us.ravel().tolist())), fit, said


def _verify_terms(nodes: F64, batch: F64, context: F64, knot: float) -> dict[str, F64]:
    rows = batch * (nodes + 1)
    return {
        "forward": np.ones_like(rows),
        "row": rows,
        "token in the cache": batch * context,
        f"row beyond {knot:g}": np.maximum(0.0, rows - knot),
        "row and token in the cache": rows * context,
    }


def _beyond(steps: Steps, batch: float) -> list[str]:
    least, most = steps.batch.min(), steps.batch.max()
    if least <= batch <= most:
        return []
    seen = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    return [f"times at batch {batch:g} are extrapolated from batches of {seen}"]


def _weights(columns: dict[str, F64], target: F64) -> dict[str, float]:
    found = non_negative(np.column_stack(list(columns.values())), target)
    return dict(zip(columns, found.tolist(), strict=True))


def _predicted(weights: dict[str, float], terms: dict[str, F64]) -> F64:
    return np.asarray(sum(weights.get(name, 0.0) * term for name, term in terms.items()))


def _batches(batch: F64) -> tuple[float, ...]:
    return tuple(np.unique(np.quantile(batch, np.linspace(0, 1, _POINTS))).tolist())


def _axis(low: float, high: float) -> tuple[float, ...]:
    return (low, float(high)) if high > low else (low,)


def _fit(part: str, over: str, weights: dict[str, float], size: F64, measured: F64, fitted: F64) -> Fit:
    off = np.abs(measured - fitted)
    edges = np.unique(np.quantile(size, np.linspace(0, 1, _GROUPS + 1), method="closest_observation"))
    group = np.searchsorted(edges, size)
    rows = []
    for number in np.unique(group):
        inside = group == number
        medians = (float(np.median(column[inside])) for column in (measured, fitted, off))
        rows.append(Residual(float(np.median(size[inside])), int(inside.sum()), *medians))
    middle = float(np.median(measured))
    terms = tuple(Term(name, us) for name, us in weights.items() if us > 0)
    share = float(np.median(off)) / middle if middle else None
    return Fit(part, over, len(size), terms, float(np.median(off)), share, tuple(rows))


def _fit_dict(fit: Fit) -> dict[str, Any]:
    return fit._asdict() | {
        "terms": [term._asdict() for term in fit.terms],
        "residuals": [row._asdict() for row in fit.residuals],
    }
