"""What recording costs the host, on made-up rows: the decoding process's share, and the recorder's by thread.

`python -m dflash.bench.handover` prints both at 1, 8 and 64 lanes, whose requests end one after the other.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

from dflash.bench.handover_rows import (
    PROMPT_TOKENS,
    TAPS,
    TOP,
    Case,
    Rounds,
    prefill_row,
)
from dflash.bench.replay_files import Made, header
from dflash.draftfile.feature_values import ENCODINGS
from dflash.engine.lane import Lane
from dflash.engine.output import Part, RecorderPlan
from dflash.engine.recorder.process import ProcessRecorder, open_process
from dflash.engine.recorder.unmade import Unmade
from dflash.engine.request import Request
from dflash.target.sampling import Sampling

PROMPT = "Tell me, step by step and at length, how a lighthouse works. " * 8
LANES, CHAINS = (1, 8, 64), {0: 4, 7: 2}
# of a request of 128 tokens
ROUNDS = {0: 128, 7: 64}


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took.

    Attributes:
        row_us: of the thread that decodes, a row.
        request_us: of that thread, for the start and the end of a request.
        recorder_us: of the recorder's processor time a row, its start left out.
        threads_us: the same of each of its threads; empty where the system does not tell.
        blocked: seconds.
        file_bytes: of the file, a row.
    """

    rows: int
    row_us: float
    request_us: float
    recorder_us: float
    threads_us: Mapping[str, float]
    blocked: float
    file_bytes: float


@dataclass(slots=True)
class _Clock:
    """Processor time of the thread that decodes, summed over calls."""

    seconds: float = 0.0

    def run(self, call: Callable[..., Any], *given: Any) -> None:
        """Call, and count how long that took."""
        begun = thread_time()
        call(*given)
        self.seconds += thread_time() - begun


class _Decoding:
    """Hands over rounds as an engine does: a lane whose request ends takes the next one."""

    def __init__(self, case: Case, rounds: Rounds, recorder: ProcessRecorder) -> None:
        self.case, self.recorder, self.rounds = case, recorder, rounds
        self.row_clock, self.request_clock = _Clock(), _Clock()
        self.live_rows = self.prompt_rows = self.opened = 0
        self.chains = case.rounds // case.chain

    def run(self) -> None:
        """Hand over all requests."""
        case = self.case
        lanes = {index: self._open(index) for index in range(case.lanes)}
        begun, number = [0] * case.lanes, 0
        # the first ones are shorter, so that they end one after the other
        last = [self.chains * (index + 1) // case.lanes for index in range(case.lanes)]
        while self.opened < case.requests + case.lanes:
            chain = self.rounds.chain(number, begun, last)
            self.row_clock.run(self._rounds, lanes, chain)
            number += 1
            for index in [index for index, end in enumerate(last) if end < number]:
                self._close(lanes[index])
                lanes[index], begun[index], last[index] = self._open(index), number, number + self.chains - 1
        for lane in lanes.values():
            self._close(lane)

    def _rounds(self, lanes: dict[int, Lane], chain: Any) -> None:
        self.recorder.unmade(lanes, Unmade.now(chain.numbers[1], self.rounds.maker, chain, chain.size))
        self.live_rows += chain.numbers.shape[1]

    @property
    def rows(self) -> int:
        """Handed over."""
        return self.live_rows + self.prompt_rows

    def _open(self, index: int) -> Lane:
        order = self.opened
        request = Request(
            f"request-{order:06d}", [5] * self.case.prompt_tokens, PROMPT, Sampling(0.0), 0,
            self.case.rounds, order=order,
        )  # fmt: skip
        lane = Lane.start(index, request, frozenset(), None, None)
        self.request_clock.run(self.recorder.opened, lane)
        self.request_clock.run(self._answer, lane)
        self.opened += 1
        return lane

    def _answer(self, lane: Lane) -> None:
        """Hand over a prompt, by itself: an engine does several at once, but for those with hidden states."""
        self.prompt_rows += 1
        if self.case.features is None:
            self.recorder.unmade({lane.index: lane}, self.rounds.answered(lane))
            return
        columns, others = self.rounds.prompt(lane.request)
        self.recorder.row(lane, {**prefill_row(lane.request), **columns})
        for each in others:
            self.recorder.row(lane, each)
            self.prompt_rows += 1

    def _close(self, lane: Lane) -> None:
        self.request_clock.run(self.recorder.closed, lane)
        self.request_clock.run(self.recorder.ended, lane.request.order)


def measure(case: Case) -> Cost:
    """Record a case in a process of its own."""
    rounds = Rounds(case)
    idle = _recorded(case._replace(requests=0), rounds)
    whole = _recorded(case, rounds)
    rows, requests = whole.decoding.rows - idle.decoding.rows, whole.decoding.opened
    return Cost(
        rows,
        1e6 * whole.decoding.row_clock.seconds / whole.decoding.live_rows,
        1e6 * whole.decoding.request_clock.seconds / requests,
        1e6 * (whole.seconds - idle.seconds) / rows,
        {name: 1e6 * (each - idle.threads.get(name, 0.0)) / rows for name, each in whole.threads.items()},
        whole.blocked,
        (whole.size - idle.size) / rows,
    )


@dataclass(frozen=True, slots=True)
class _Recorded:
    decoding: _Decoding
    seconds: float
    threads: Mapping[str, float]
    blocked: float
    size: int


def _recorded(case: Case, rounds: Rounds) -> _Recorded:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        made = header(Made(1, dense=True, length=case.length)) | {"store_topk": TOP, "lanes": case.lanes}
        made |= {"dense": False, "features": {"mode": "fingerprint", "hidden": TAPS // 3, "taps": []}}
        if case.features:
            made["features"] |= {"mode": "all", "encoding": case.features}
        plan = RecorderPlan(
            Path(folder) / "run.parquet", made, Part("made", 0, 1), 5.0, False, False, True, True
        )
        with open_process(plan) as recorder:
            decoding = _Decoding(case, rounds, recorder)
            decoding.run()
            published = recorder.finish()
            blocked = recorder.pressure.blocked_seconds
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return _Recorded(decoding, used, recorder.seconds, blocked, published.bytes)


def main() -> None:
    """Print a line for each number of lanes, plain and with chains of 7."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000, help="live rows of each case, about")
    parser.add_argument("--features", choices=ENCODINGS, help="keep whole hidden states")
    parser.add_argument("--lanes", type=int, nargs="+", default=LANES)
    parser.add_argument("--length", type=int, nargs="+", choices=CHAINS, default=list(CHAINS))
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="of a request")
    given = parser.parse_args()
    print("lanes length      rows   us/row us/request  recorder us/row  blocked s  bytes/row  by thread")
    for length in given.length:
        for lanes in given.lanes:
            requests = max(lanes, given.rows // ROUNDS[length])
            case = Case(
                lanes, CHAINS[length], length, requests, ROUNDS[length], given.features, given.prompt_tokens
            )
            cost = measure(case)
            threads = sorted(cost.threads_us.items(), key=lambda each: -each[1])
            print(
                f"{lanes:5} {length:6} {cost.rows:9} {cost.row_us:8.2f} {cost.request_us:10.1f} "
                f"{cost.recorder_us:16.2f} {cost.blocked:10.2f} {cost.file_bytes:10.1f}  "
                + ", ".join(f"{name} {each:.2f}" for name, each in threads),
                flush=True,
            )


if __name__ == "__main__":
    main()
