"""`--fail-on`: how far a metric may move before a release is stopped."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dflash.diff.errors import AcceptPosition, MetricUnknown, ThresholdRelative, ThresholdSyntax

METRICS: Mapping[str, str] = {
    "tau": "accepted nodes + 1 per live round of the aligned requests",
    "accept@N": "live rounds that accept at least N nodes, of all live rounds",
    "kl_mean": "mean KL of the target's probabilities, A against B, in nats; 0 between equal files",
    "same_top1": "share of the slots with the same first token; 1 between equal files",
    "tokens": "share of the output tokens before their request's first difference; 1 between equal files",
}
_FORM = re.compile(r"([A-Za-z_0-9]+(?:@[A-Za-z0-9]*)?):([+-]?)(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)(%?)")
_ACCEPT = re.compile(r"accept@([1-9]\d{0,3})")


class Metric(NamedTuple):
    """A number on both sides; None if it cannot be measured."""

    a: float | None
    b: float | None

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True, slots=True)
class Threshold:
    """The most that a metric may move, up (`+`), down (`-`) or either way (no sign).

    Attributes:
        relative: `amount` is in percent of A.
    """

    text: str
    metric: str
    sign: Literal["", "+", "-"]
    amount: float
    relative: bool

    def judge(self, metric: Metric) -> Judgement:
        """Hold a metric against the threshold; what cannot be measured fails."""
        change = metric.change
        if change is None or metric.a is None or (self.relative and metric.a == 0 and change):
            return Judgement(self.text, self.metric, *metric, None, True, "it could not be measured")
        moved = 100.0 * change / abs(metric.a) if self.relative and change else change
        failed = {"+": moved, "-": -moved, "": abs(moved)}[self.sign] > self.amount
        unit = " %" if self.relative else ""
        allowed = {"+": "a rise", "-": "a fall", "": "a change"}[self.sign]
        why = f"it moved by {moved:+.6g}{unit}, allowed is {allowed} of {self.amount:g}{unit}"
        return Judgement(self.text, self.metric, *metric, moved, failed, why)


class Judgement(NamedTuple):
    """What became of a threshold; `moved` is in percent if the threshold is."""

    threshold: str
    metric: str
    a: float | None
    b: float | None
    moved: float | None
    failed: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def parse_thresholds(text: str) -> list[Threshold]:
    """Read `METRIC:[+|-]X[%],...`.

    Raises:
        ThresholdSyntax: not of this form, or X is not finite.
        AcceptPosition: `accept@N` without a position of a draft.
        MetricUnknown: no such metric.
        ThresholdRelative: a percentage of a metric that is 0 between equal files.
    """
    return [_parse(part.strip()) for part in text.split(",")]


def _parse(text: str) -> Threshold:
    form = _FORM.fullmatch(text)
    if form is None:
        raise ThresholdSyntax(text)
    metric, sign, number, percent = form.groups()
    if metric not in METRICS.keys() - {"accept@N"} and not _ACCEPT.fullmatch(metric):
        raise AcceptPosition(metric) if metric.startswith("accept@") else MetricUnknown(metric, METRICS)
    if percent and metric == "kl_mean":
        raise ThresholdRelative(metric)
    amount = float(number)
    if not math.isfinite(amount):
        raise ThresholdSyntax(text)
    return Threshold(text, metric, sign, amount, bool(percent))  # type: ignore[arg-type]
