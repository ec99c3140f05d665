"""What a recording is doing, as Prometheus text: counted from its rounds, written whole every few seconds."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash import __version__
from dflash.draftfile.publish import beside
from dflash.draftfile.summary import Kind
from dflash.engine.judge import Row
from dflash.engine.lane import Lane, Truncation
from dflash.engine.loop import Sink
from dflash.engine.recorder.recorder import Pressure
from dflash.engine.recorder.unmade import Unmade, hand_over
from dflash.errors import DflashError

SECONDS = 5.0
Labels = Mapping[str, str]


class MetricsUnwritable(DflashError):
    """The file of metrics cannot be written where it was asked for."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"--metrics cannot be written to {path}: {reason}.")


def check_place(path: Path) -> None:
    """Refuse a place without a folder, or where something is that a new file must not replace.

    Raises:
        MetricsUnwritable: Says which.
    """
    if not path.parent.is_dir():
        raise MetricsUnwritable(path, "there is no such folder")
    if path.exists() and not path.is_file():
        raise MetricsUnwritable(path, "what is there is no regular file")


class Family(NamedTuple):
    """One metric: samples by (suffix of the name, labels)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, Labels, float]]


@dataclass(slots=True)
class Counts:
    """Sums over a recording so far; `drafted` and `accepted` are live rounds by the depth they reached."""

    finish: Counter[str] = field(default_factory=Counter)
    open: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    dense_rows: int = 0
    nodes: int = 0
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    branches: Counter[int] = field(default_factory=Counter)
    draft_us: float = 0.0
    verify_us: float = 0.0
    step: int = -1

    def add(self, row: Row) -> None:
        """Count one row."""
        kind = row["kind"]
        self.dense_rows += kind == Kind.DENSE
        self.tokens += row.get("emitted") or 0
        if kind == Kind.PREFILL:
            self.prompt_tokens += len(row["prompt_tokens"])
        if kind != Kind.LIVE:
            return
        self.rounds += 1
        self.nodes += len(row["node_token"])
        self.drafted[row["draft_length"]] += 1
        self.accepted[len(row["accepted_nodes"])] += 1
        self.branches[row["branches"]] += 1
        # lanes of one step share its times
        if row["step"] != self.step:
            self.step = row["step"]
            self.draft_us += _known(row["draft_us"])
            self.verify_us += _known(row["verify_us"])

    def add_many(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Count rows that are all live, all dense or all of prompts, as `Maker.counted` tells of them."""
        live = rows["kind"] == Kind.LIVE
        self.dense_rows += int((rows["kind"] == Kind.DENSE).sum())
        if "prompt_tokens" in rows:
            self.prompt_tokens += int(rows["prompt_tokens"].sum())
            self.tokens += int(rows["emitted"].sum())
        if not live.any():
            return
        self.rounds += len(live)
        self.tokens += int(rows["emitted"].sum())
        self.nodes += int(rows["nodes"].sum())
        for counter, name in (
            (self.drafted, "draft_length"), (self.accepted, "accepted"), (self.branches, "branches"),
        ):  # fmt: skip
            counter.update(rows[name].tolist())
        # lanes of one step share its times
        steps, places = np.unique(rows["step"], return_index=True)
        fresh = places[steps > self.step]
        self.step = int(steps[-1])
        self.draft_us += float(np.nansum(rows["draft_us"][fresh]))
        self.verify_us += float(np.nansum(rows["verify_us"][fresh]))


@dataclass(slots=True)
class Metrics:
    """A sink between an engine and its own sink, which keeps a file of metrics up to date.

    Attributes:
        labels: Of every sample.
        pressure: How far behind the recorder is.
        wasted: Rounds that were begun after their request had ended.
        failed: Why the file could not be written lately; recording goes on without it.
    """

    sink: Sink
    path: Path
    pressure: Callable[[], Pressure]
    wasted: Callable[[], int] = lambda: 0
    labels: Labels = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    started: float = field(default_factory=time.time)
    failed: str | None = None
    _written: float = 0.0

    def begin(self) -> None:
        """Write the first file.

        Raises:
            MetricsUnwritable: It cannot be written.
        """
        check_place(self.path)
        # a link stays, and leads to each new file
        self.path = self.path.resolve()
        self.write()
        if self.failed is not None:
            raise MetricsUnwritable(self.path, self.failed)

    def opened(self, lane: Lane) -> None:
        """Hand on."""
        self.counts.open += 1
        self.sink.opened(lane)

    def row(self, lane: Lane, row: Row) -> None:
        """Count, hand on, and write the file if it is time."""
        self.counts.add(row)
        self.sink.row(lane, row)
        if self.clock() - self._written >= SECONDS:
            self.write()

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """Count rows that are made elsewhere, and hand on."""
        self.counts.add_many(rows.maker.counted(rows.part))
        hand_over(self.sink, lanes, rows)
        if self.clock() - self._written >= SECONDS:
            self.write()

    def closed(self, lane: Lane) -> None:
        """Hand on."""
        self.counts.open -= 1
        self.counts.finish[str(lane.finish)] += 1
        self.sink.closed(lane)

    def ended(self, order: int) -> None:
        """Hand on."""
        self.sink.ended(order)

    def write(self) -> None:
        """Put a new file in the place of the old one."""
        self._written = self.clock()
        partial = beside(self.path, ".partial")
        try:
            partial.write_text(self.text(), encoding="utf-8")
            partial.replace(self.path)
            self.failed = None
        except OSError as error:
            partial.unlink(missing_ok=True)
            self.failed = os.strerror(error.errno) if error.errno else str(error)

    def text(self) -> str:
        """All metrics, in Prometheus' text format."""
        return "".join(line for family in self._families() for line in _lines(family, self.labels))

    def _families(self) -> Iterator[Family]:
        counts, pressure = self.counts, self.pressure()
        accepted = sum(depth * rounds for depth, rounds in counts.accepted.items())
        yield _one("build_info", "gauge", "Version of the toolkit.", 1, {"version": __version__})
        yield _one("start_time_seconds", "gauge", "When the recording began, in Unix time.", self.started)
        reasons = {str(reason): counts.finish[str(reason)] for reason in list(Truncation)[1:]}
        yield _labelled("requests_total", "Requests that have ended, by what ended them.", "finish", reasons)
        yield _one("requests_open", "gauge", "Requests in the lanes.", counts.open)
        yield _one("prompt_tokens_total", "counter", "Tokens of prompts.", counts.prompt_tokens)
        yield _one("tokens_total", "counter", "Committed tokens.", counts.tokens)
        yield _one("rounds_total", "counter", "Live rounds.", counts.rounds)
        yield _one(
            "wasted_rounds_total", "counter", "Rounds begun after their request had ended.", self.wasted()
        )
        yield _one("dense_rows_total", "counter", "Rows of the dense pass.", counts.dense_rows)
        yield _one("drafted_nodes_total", "counter", "Drafted nodes of live rounds.", counts.nodes)
        yield _one("accepted_nodes_total", "counter", "Accepted nodes of live rounds.", accepted)
        if counts.rounds:
            tau = 1 + accepted / counts.rounds
            yield _one("tau", "gauge", "Accepted nodes + 1 per live round since the start.", tau)
        drafted, reached = _reaching(counts.drafted), _reaching(counts.accepted)
        yield _labelled(
            "position_drafted_total", "Live rounds whose tree reaches the position.", "position", drafted
        )
        yield _labelled(
            "position_accepted_total",
            "Live rounds that accepted a node at the position.",
            "position",
            {position: reached.get(position, 0) for position in drafted},
        )
        yield _histogram("draft_length_nodes", "Depth of the drafts of live rounds.", counts.drafted)
        yield _histogram("branches", "Branches of the drafts of live rounds.", counts.branches)
        yield _one("draft_seconds_total", "counter", "Time of drafting.", counts.draft_us / 1e6)
        yield _one("verify_seconds_total", "counter", "Time of verifying.", counts.verify_us / 1e6)
        yield from _of_recorder(pressure)


def _of_recorder(pressure: Pressure) -> Iterator[Family]:
    blocked = "Time that decoding waited for the recorder."
    yield _one("recorder_blocked_seconds_total", "counter", blocked, pressure.blocked_seconds)
    yield _one("recorder_queue_rows", "gauge", "Rows that the recorder has still to take.", pressure.rows)
    yield _one("recorder_queue_bytes", "gauge", "Their size.", pressure.bytes)
    yield _one("recorder_queue_capacity_bytes", "gauge", "Size at which decoding waits.", pressure.capacity)


def _one(
    name: str, kind: Literal["counter", "gauge"], text: str, value: float, labels: Labels | None = None
) -> Family:
    return Family(name, kind, text, [("", labels or {}, value)])


def _labelled(name: str, text: str, label: str, values: Mapping[str, int]) -> Family:
    samples: list[tuple[str, Labels, float]] = [("", {label: key}, count) for key, count in values.items()]
    return Family(name, "counter", text, samples)


def _histogram(name: str, text: str, values: Mapping[int, int]) -> Family:
    samples: list[tuple[str, Labels, float]] = []
    below = 0
    for value in sorted(values):
        below += values[value]
        samples.append(("_bucket", {"le": str(value)}, below))
    samples.append(("_bucket", {"le": "+Inf"}, below))
    total = sum(value * count for value, count in values.items())
    return Family(name, "histogram", text, [*samples, ("_sum", {}, total), ("_count", {}, below)])


def _reaching(depths: Mapping[int, int]) -> dict[str, int]:
    """Rounds that come to each position, from 1."""
    positions = range(1, max(depths, default=0) + 1)
    return {
        str(position): sum(count for depth, count in depths.items() if depth >= position)
        for position in positions
    }


def _lines(family: Family, labels: Labels) -> Iterator[str]:
    name = f"dflash_{family.name}"
    yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
    for suffix, own, value in family.samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**labels, **own}.items())
        yield f"{name}{suffix}{{{pairs}}} {value:.17g}\n" if pairs else f"{name}{suffix} {value:.17g}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _known(us: float | None) -> float:
    return 0.0 if us is None or np.isnan(us) else float(us)
