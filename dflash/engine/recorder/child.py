"""The process that records: it keeps what the decoding process says, whatever becomes of that one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dflash.engine.output import RecorderPlan, open_here
from dflash.engine.recorder.recorder import Recorder
from dflash.engine.recorder.rehearsal import rehearse
from dflash.engine.recorder.ring import COUNT, RingReader
from dflash.engine.recorder.unmade import Maker, Unmade
from dflash.engine.recorder.wire import Buffer, FarLane, Forms, dumps, is_form, unframed, unpacked_row
from dflash.errors import DflashError

SECONDS = 0.2
# seconds that a thread may keep the others from Python, which those that write need often and briefly
TURN = 0.0005
# many requests take less time at once, and few rows are lost if this process is killed
PATIENCE = 0.05


def main() -> None:
    """Serve the process that holds the other ends of the descriptors given as arguments."""
    # it ends when the decoding process has said all, or is no more: not before
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(TURN)
    # what is there by now stays there: it need not be looked at each time garbage is collected
    gc.freeze()
    memory, pieces, acknowledged, replies = map(int, sys.argv[1:])
    child = RecorderChild(RingReader(memory, pieces, acknowledged), replies)
    try:
        child.serve()
    except BaseException as error:
        child.reply("error", *_told(error), child.left)
    # in this order the other end finds the reply before it finds the end
    os.close(replies)
    os.close(acknowledged)


class RecorderChild:
    """A recorder, and the calls on it that arrive.

    Attributes:
        left: The journal, if it was kept.
    """

    def __init__(self, ring: RingReader, replies: int) -> None:
        self._messages = ring.messages(self._idle)
        self._replies = replies
        self._recorder: Recorder | None = None
        self._lanes: dict[int, FarLane] = {}
        self._makers: list[Maker] = []
        self._forms = Forms()
        self.left: Path | None = None

    def serve(self) -> None:
        """Record until it is said that this is all, or nobody is there to say anything."""
        first = next(self._messages, None)
        if first is None:
            return
        plan: RecorderPlan = unframed(first)[1]
        with open_here(plan, patience=PATIENCE, alone=True) as recorder:
            self._recorder = recorder
            try:
                rehearse()
                self.reply("ready", recorder.keeps)
                self._record(recorder, self._messages)
            except BaseException:
                self.left = recorder.leave()
                raise

    def reply(self, *message: Any) -> None:
        """Answer the decoding process, if it is still there."""
        text = dumps(*message)
        try:
            os.write(self._replies, COUNT.pack(len(text)))
            while text:
                text = text[os.write(self._replies, text) :]
        except BrokenPipeError:
            return

    def _record(self, recorder: Recorder, messages: Iterator[Buffer]) -> None:
        for message in messages:
            if is_form(message):
                self._unmade(recorder, *self._forms.unframed(message))
                continue
            match unframed(message):
                case "row", index, row:
                    recorder.row(self._lanes[index], unpacked_row(row))
                case "maker", maker:
                    self._makers.append(maker)
                case "opened", index, request:
                    self._lanes[index] = FarLane(index, request)
                    recorder.opened(self._lanes[index])
                case "closed", index if index in self._lanes:
                    recorder.closed(self._lanes[index])
                case "closed", _:
                    # of a request that nobody opened, as one that was broken off at its start
                    pass
                case "ended", order:
                    recorder.ended(order)
                case ("sync",):
                    recorder.sync()
                case "take", request:
                    self.reply("taken", _bytes(recorder.take_kept(request)))
                case "finish", status, lost:
                    published = recorder.finish(status, lost)
                    self.reply("published", published, recorder.totals, recorder.seconds)
                    return
                case ("leave",):
                    break
        self.left = recorder.leave()
        self.reply("left", self.left)

    def _unmade(
        self,
        recorder: Recorder,
        maker: int,
        lanes: bytes,
        size: int,
        started_at: int,
        part: tuple[Any, ...],
    ) -> None:
        where = np.frombuffer(lanes, np.int64)
        recorder.unmade(self._lanes, Unmade(where, self._makers[maker], part, size, started_at))

    def _idle(self) -> float | None:
        """Sync what waits for it; the decoding process may be busy with something else for long."""
        recorder = self._recorder
        if recorder is None:
            return None
        return min(SECONDS, recorder.tend())


def _bytes(table: pa.Table | None) -> bytes | None:
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _told(error: BaseException) -> tuple[str, str, str]:
    """Module and name of an error's class, and its words; those of a fault say where it happened."""
    kind = type(error)
    if isinstance(error, DflashError | MemoryError):
        return kind.__module__, kind.__qualname__, str(error)
    return "", kind.__name__, "".join(traceback.format_exception(error))
