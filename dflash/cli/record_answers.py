"""What `dflash record` prints of answers: growing text, whole answers, or lines of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from dflash.cli.output import bar
from dflash.engine.lane import Lane


class Answers(StrEnum):
    """How answers go to stdout."""

    NONE = "none"
    GROWING = "growing"
    WHOLE = "whole"
    LINES = "lines"


class Tellers(NamedTuple):
    """Who is told of the text as it grows, and of every lane whose request has ended."""

    text: Callable[[str], None] | None
    request: Callable[[Lane], None]


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
    if answers is Answers.GROWING:
        yield Tellers(_write, lambda lane: _write("\n"))
        return
    if answers is Answers.WHOLE:
        yield Tellers(None, lambda lane: _write(lane.text + "\n"))
        return
    with bar("decoding", total) as (progress, task):

        def ended(lane: Lane) -> None:
            progress.update(task, advance=1, description=f"decoded {lane.request.request_id}")
            if answers is Answers.LINES:
                _write(line(lane))

        yield Tellers(None, ended)


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
