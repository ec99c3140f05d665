"""A recorder in a process of its own, seen from the decoding process: rows go out, a file comes of them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa

import dflash
from dflash.draftfile.journal import journal_path
from dflash.draftfile.writer import Published
from dflash.engine.free_memory import host_free
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.engine.output import RecorderPlan
from dflash.engine.recorder.recorder import Pressure
from dflash.engine.recorder.ring import COUNT, ReaderGone, RingWriter, capacity_for
from dflash.engine.recorder.totals import Totals
from dflash.engine.recorder.unmade import Maker, Unmade, now
from dflash.engine.recorder.wire import AskedRequest, Buffer, Forms, framed, loads, packed_row
from dflash.engine.request import Request
from dflash.errors import DflashError

# so that memory which was used once is used again, by Arrow too: the system takes long to give it
KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
PROGRAM = "from dflash.engine.recorder.child import main; main()"


class RecorderDied(DflashError):
    """The recording process ended without a word."""

    def __init__(self, status: int, *, started: bool = True) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
        what = (
            "what it had written before is kept" if started else "it had not started, so nothing is recorded"
        )
        super().__init__(f"The process that records {how}; {what}.")


class RecorderFault(RuntimeError):
    """A fault in the recording process; its words are the traceback there."""


class ProcessRecorder:
    """Has the calls of `Recorder`, and hands them to a child process in order.

    A call returns as soon as its message lies in the shared ring, which outlives this process: what was
    handed over is recorded though this process were killed the moment after. Where the ring is full, calls
    wait; nothing is dropped. Errors of the child are raised by the next call, as the same class.
    """

    def __init__(self, plan: RecorderPlan, ring: RingWriter | None = None) -> None:
        self._plan = plan
        self._ring = ring or RingWriter(capacity_for(_whole(plan), host_free()))
        self._replies, theirs = os.pipe()
        given = (self._ring.memory, self._ring.pieces, self._ring.acknowledged, theirs)
        # apart from the terminal's group: Ctrl-C there is for the decoding process alone
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=given,
            start_new_session=True,
            env=_environment(),
        )
        os.close(theirs)
        self._ring.handed_over()
        self._ring.make_ready()
        self.totals = Totals()
        self.seconds: Mapping[str, float] = {}
        self._left: Path | None = None
        self._over = self._started = False
        self._error: Exception | None = None
        self._makers: dict[int, tuple[int, Maker]] = {}
        self._forms = Forms()
        self._unread = bytearray()
        self.keeps = 0

    def begin(self) -> None:
        """Have the files opened, and wait for that only where an earlier recording is to be gone on with.

        The child takes a while to start; what is handed over meanwhile lies in the ring.

        Raises:
            DflashError: As `await_start`, with `resume`.
        """
        # as JSON has it: an enumeration of the engine's would make the child import torch
        header = json.loads(json.dumps(self._plan.header))
        self._say("open", self._plan._replace(header=header))
        if self._plan.resume:
            self.await_start()

    def await_start(self) -> None:
        """Wait until the child has opened the files and loaded what rows need, and the ring is ready.

        What starts while rounds run slows these down.

        Raises:
            DflashError: As `open_here`; or the child ended.
        """
        if not self._started:
            _, self.keeps = self._reply("ready")
            self._started = True
        self._ring.await_pages()

    @property
    def pressure(self) -> Pressure:
        """How far the child is behind."""
        try:
            rows, size = (0, 0) if self._over else self._ring.queued
        except ReaderGone:
            rows, size = 0, 0
        return Pressure(self._ring.blocked_seconds, rows, size, self._ring.capacity)

    def opened(self, lane: Lane) -> None:
        """As `Recorder.opened`."""
        self._say("opened", lane.index, AskedRequest(lane.request.request_id, lane.request.order))

    def row(self, lane: Lane, row: Row) -> None:
        """As `Recorder.row`."""
        self._say("row", lane.index, packed_row({"started_at": now(), **row}))

    def unmade(self, lanes: Mapping[int, Lane], rows: Unmade) -> None:
        """As `Recorder.unmade`, with the rows made in the child."""
        maker = rows.maker
        if id(maker) not in self._makers:
            self._makers[id(maker)] = len(self._makers), maker
            self._say("maker", maker)
        place, _ = self._makers[id(maker)]
        known = place, rows.lanes.tobytes(), rows.size, rows.started_at
        self._put(self._forms.framed(known, rows.part), len(rows.lanes))

    def closed(self, lane: Lane) -> None:
        """As `Recorder.closed`."""
        self._say("closed", lane.index)

    def ended(self, order: int) -> None:
        """As `Recorder.ended`."""
        self._say("ended", order)

    def take_kept(self, request: Request) -> pa.Table | None:
        """As `Recorder.take_kept`."""
        asked = AskedRequest(
            request.request_id, request.order, request.prompt_tokens, request.prompt_text, request.info_json()
        )
        self._say("take", asked)
        _, found = self._reply("taken")
        return None if found is None else pa.ipc.open_stream(found).read_all()

    def sync(self) -> None:
        """Ask for `Recorder.sync`, which is done when the child comes to it."""
        self._say("sync")

    def finish(self, run_status: Any = "finished", lost: Mapping[str, Any] | None = None) -> Published:
        """As `Recorder.finish`."""
        self._say("finish", run_status, lost)
        published: Published
        _, published, self.totals, self.seconds = self._reply("published")
        self._over = True
        return published

    def leave(self) -> Path | None:
        """As `Recorder.leave`; after a death, the journal as it lies there.

        Where `finish` was broken off, the file may be there already, and no journal is.
        """
        if not self._over:
            try:
                self._say("leave")
                kind, *told = self._reply("left", "published")
                self._left = told[0] if kind == "left" else None
            except (DflashError, RecorderFault, MemoryError):
                # what broke the recording is told already
                self._over = True
        return self._left

    def close(self) -> None:
        """Let the child end, and wait until it has let go of its files."""
        self._over = True
        self._ring.close()
        os.close(self._replies)
        self._process.wait()

    def _say(self, *message: Any) -> None:
        self._put(framed(*message), 1)

    def _put(self, message: Sequence[Buffer], rows: int) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._ring.put(*message, rows=rows)
        except ReaderGone:
            self._fail(self._awaited("error"))

    def _reply(self, *kinds: str) -> tuple[Any, ...]:
        """What the child answers, after all that was said before."""
        found = self._awaited(*kinds, "error")
        if found is None or found[0] == "error":
            self._fail(found)
        return found

    def _awaited(self, *kinds: str) -> tuple[Any, ...] | None:
        """The next reply of these kinds; those before it are to calls that were broken off."""
        found = self._read()
        while found is not None and found[0] not in kinds:
            found = self._read()
        return found

    def _fail(self, words: tuple[Any, ...] | None) -> NoReturn:
        """Raise what ended the child, now and at every later call."""
        self._over = True
        if words is None:
            journal = journal_path(self._plan.output)
            self._left = journal if journal.exists() and journal.stat().st_size else None
            self._error = RecorderDied(self._process.wait(), started=self._started or self._left is not None)
        else:
            _, module, name, told, self._left = words
            self._error = _rebuilt(module, name, told)
        raise self._error

    def _read(self) -> tuple[Any, ...] | None:
        """One reply; None if the child has ended."""
        if not self._heard(COUNT.size):
            return None
        (size,) = COUNT.unpack_from(self._unread)
        if not self._heard(COUNT.size + size):
            return None
        text = bytes(self._unread[COUNT.size : COUNT.size + size])
        del self._unread[: COUNT.size + size]
        return loads(text)

    def _heard(self, size: int) -> bool:
        """Read until there are so many bytes of a reply; what is broken off goes on with the next call."""
        while len(self._unread) < size:
            more = os.read(self._replies, size - len(self._unread))
            if not more:
                return False
            self._unread += more
        return True


@contextmanager
def open_process(plan: RecorderPlan) -> Iterator[ProcessRecorder]:
    """A recorder in another process, gone when the context ends.

    Raises:
        DflashError: As `ProcessRecorder.begin`.
    """
    recorder = ProcessRecorder(plan)
    try:
        recorder.begin()
        yield recorder
    finally:
        recorder.close()


def _whole(plan: RecorderPlan) -> bool:
    """Whether rows come with whole hidden states."""
    return bool(plan.header["features"]["mode"] == "all")


def _environment() -> Mapping[str, str]:
    """This one, with the package that runs here found first there."""
    own = str(Path(str(dflash.__file__)).parents[1])
    paths = [own, os.environ.get("PYTHONPATH", "")]
    return MappingProxyType(
        {**KEEPS_MEMORY, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    )


def _rebuilt(module: str, name: str, told: str) -> Exception:
    """The child's error as one of the same class with the same words."""
    if not module:
        return RecorderFault(f"{name} in the process that records:\n{told}")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    found: Exception = kind.__new__(kind)
    Exception.__init__(found, told)
    return found
