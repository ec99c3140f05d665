"""What `dflash record` prints of answers: growing text, whole answers, or lines of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from dflash.cli.output import bar, silence, warn
from dflash.engine.lane import Lane


class Answers(StrEnum):
    """How answers go to stdout."""

    NONE = "none"
    GROWING = "growing"
    WHOLE = "whole"
    LINES = "lines"


class Printer:
    """Prints answers as long as stdout takes them; a recording goes on without.

    Attributes:
        failed: why it takes no more.
    """

    def __init__(self) -> None:
        self.failed: OSError | None = None

    def __call__(self, text: str) -> None:
        """Print some text.

        Raises:
            BrokenPipeError: the reader left.
        """
        if self.failed is not None:
            return
        try:
            _write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.failed = error
            silence(sys.stdout)
            warn(f"stdout takes no more ({error.strerror or error}): the recording goes on without it")


class Tellers(NamedTuple):
    """Who is told of the text as it grows, and of every lane whose request has ended."""

    text: Callable[[str], None] | None
    request: Callable[[Lane], None]
    printer: Printer


def chosen(words: bool, lanes: int, *, as_json: bool, json_lines: bool) -> Answers:
    """How answers are printed; those of several lanes would run into each other as they grow."""
    if json_lines:
        return Answers.LINES
    if as_json or not words:
        return Answers.NONE
    return Answers.GROWING if lanes == 1 else Answers.WHOLE


@contextmanager
def tellers(answers: Answers, total: int | None) -> Iterator[Tellers]:
    """Print answers, and move a progress bar on where no answer moves on the terminal."""
    printer = Printer()
    if answers is Answers.GROWING:
        yield Tellers(printer, lambda lane: printer("\n"), printer)
        return
    if answers is Answers.WHOLE:
        yield Tellers(None, lambda lane: printer(lane.text + "\n"), printer)
        return
    with bar("decoding", total) as (progress, task):

        def ended(lane: Lane) -> None:
            progress.update(task, advance=1, description=f"decoded {lane.request.request_id}")
            if answers is Answers.LINES:
                printer(line(lane))

        yield Tellers(None, ended, printer)


def line(lane: Lane) -> str:
    """A request that has ended, as `dflash.record_answer/1`."""
    request = lane.request
    facts = {
        "schema": "dflash.record_answer/1",
        "request": request.request_id,
        "conversation": request.info.get("conversation"),
        "turn": request.info.get("turn", 0),
        "text": lane.text,
        "prompt_tokens": len(request.prompt_tokens),
        "tokens": len(lane.output),
        "rounds": lane.rounds,
        "finish": str(lane.finish),
    }
    return json.dumps(facts, ensure_ascii=False) + "\n"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
