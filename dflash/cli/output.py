"""Where words go: data to stdout, talk (progress, warnings, errors) to stderr.

How much is said is decided by -q and -v, kept in the click context and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn, TextIO

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LEVEL = "dflash.level"
_PIPE_WIDTH = 160


class Level(IntEnum):
    """How much is said on stderr."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


class _PipeConsole(Console):
    # rich leaves with 1 on a closed pipe, which here would mean "different"
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def set_level(level: Level) -> None:
    """Set how much the running command says."""
    click.get_current_context().meta[_LEVEL] = level


def level() -> Level:
    """How much the running command says; normal outside of a command."""
    context = click.get_current_context(silent=True)
    return Level.NORMAL if context is None else Level(context.meta.get(_LEVEL, Level.NORMAL))


def _console(to_stderr: bool) -> Console:
    stream = sys.stderr if to_stderr else sys.stdout
    narrow = stream.isatty() or "COLUMNS" in os.environ
    return _PipeConsole(
        file=stream, markup=False, highlight=False, emoji=False, width=None if narrow else _PIPE_WIDTH
    )


def data_console() -> Console:
    """A console on stdout; text is printed as it is, without rich's markup."""
    return _console(to_stderr=False)


def talk_console() -> Console:
    """A console on stderr; text is printed as it is, without rich's markup."""
    return _console(to_stderr=True)


def talk(message: str) -> None:
    """Say something on stderr, unless -q was given."""
    if level() >= Level.NORMAL:
        talk_console().print(message, soft_wrap=True)


def detail(message: str) -> None:
    """Say something on stderr that only -v asks for."""
    if level() >= Level.VERBOSE:
        talk_console().print(message, soft_wrap=True, style="dim")


def warn(message: str) -> None:
    """Warn on stderr, even under -q."""
    talk_console().print(f"warning: {message}", soft_wrap=True, style="yellow")


def complain(message: str) -> None:
    """Print an error on stderr, even under -q."""
    talk_console().print(f"error: {message}", soft_wrap=True, style="red")


def silence(stream: TextIO) -> None:
    """Let a stream that takes no more lose what is written to it: it is flushed once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def jsonable(value: Any) -> Any:
    """The value with every float that JSON cannot hold (-inf, inf, NaN) as null, and tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def document_text(document: Mapping[str, Any]) -> str:
    """A document as one JSON text and a line's end."""
    return json.dumps(jsonable(document), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def emit(document: Mapping[str, Any], as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a command's result on stdout.

    Args:
        document: The result; `document["schema"]` names its JSON Schema, for example `dflash.info/1`.
        as_json: Print the document as one JSON text instead of rendering it.
        render: Prints the same facts for a person.
    """
    if as_json:
        sys.stdout.write(document_text(document))
    else:
        render(data_console())
    sys.stdout.flush()


@contextmanager
def bar(
    description: str, total: float | None = None, clock: ProgressColumn | None = None
) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar on stderr; nothing is drawn under -q or when stderr is no terminal.

    Args:
        description: What is being done.
        total: Steps of the whole work, if that is known.
        clock: What to show of time; the time that remains unless given.

    Yields:
        The rich progress and its only task, for `progress.advance(task)`.
    """
    console = talk_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    time = clock or TimeRemainingColumn()
    hidden = level() is Level.QUIET or not console.is_terminal
    with Progress(*columns, time, console=console, transient=True, disable=hidden) as progress:
        yield progress, progress.add_task(description, total=total)


@contextmanager
def stages() -> Iterator[Callable[[str, float], None]]:
    """A progress bar over named stages, for work that reports (stage, fraction done).

    Without a terminal each stage is one line when it starts.
    """
    started: set[str] = set()
    with bar("", total=1.0, clock=TimeElapsedColumn()) as (progress, task):

        def report(stage: str, fraction: float) -> None:
            if progress.disable and stage not in started:
                talk(stage)
            started.add(stage)
            progress.update(task, description=stage, completed=fraction)

        yield report
