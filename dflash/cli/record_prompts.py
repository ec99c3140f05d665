"""Where the prompts of a recording come from: words, a file that is checked whole first, or a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from dflash.cli.output import level, talk, warn
from dflash.engine.prompts.errors import NoPrompts
from dflash.engine.prompts.files import (
    read_prompt_file,
    read_prompt_stream,
    refuse_bad,
    text_prompt,
    with_ids,
    with_remarks,
)
from dflash.engine.session import Entry


class PromptSource:
    """Prompts as words on the command line, lines of a file, or what arrives at stdin or a named pipe.

    Words and files can be read as often as it takes; they are never held whole.
    """

    def __init__(self, words: Sequence[str], file: str | None) -> None:
        self.words, self.file = words, file
        self._told: frozenset[str] = frozenset()
        self._begun: Iterator[Entry] | None = None

    @property
    def typed(self) -> bool:
        """Whether stdin was not named: a person may sit there."""
        return not self.words and self.file is None

    @cached_property
    def stream(self) -> bool:
        """Whether the prompts come as they come, and only once."""
        return self.typed or self.file == "-" or (self.file is not None and Path(self.file).is_fifo())

    @property
    def person(self) -> bool:
        """Whether somebody types at a terminal."""
        return self.typed and sys.stdin.isatty()

    def check(self, skip_bad: bool) -> None:
        """Read a list to its end, a stream to its first prompt, so that no model is loaded in vain.

        Raises:
            PromptError, SeveralBadPrompts: Lines of a file are bad, and `skip_bad` is not set.
            NoPrompts: There is not a single one.
        """
        if self.person:
            return
        entries = with_remarks(self._read(), warn)
        if self.stream:
            self._begun = entries
            first = next(entries, None)
            if first is None:
                raise NoPrompts(self._name, "expected at least one prompt, found none.")
            self._begun = chain([first], entries)
            return
        refused = refuse_bad(entries, skip_bad=skip_bad, name=self.file or "the command line")
        for error in refused:
            warn(str(error))
        self._told = frozenset(map(str, refused))

    def entries(self) -> Iterator[Entry]:
        """Prompts and errors in order; a list without the errors that were told already."""
        if self._begun is not None:
            return self._begun
        if self.stream:
            return with_remarks(self._read(), warn)
        return (entry for entry in self._read() if str(entry) not in self._told)

    @property
    def _piped(self) -> bool:
        return self.file not in (None, "-")

    @property
    def _name(self) -> str:
        return str(self.file) if self._piped else "stdin"

    def _read(self) -> Iterator[Entry]:
        if self.words:
            return with_ids(text_prompt(text) for text in self.words)
        if self.person:
            return with_ids(_typed())
        if not self.stream:
            return with_ids(read_prompt_file(Path(str(self.file))))
        return with_ids(_piped(Path(str(self.file))) if self._piped else _arriving())


def _piped(path: Path) -> Iterator[Entry]:
    """Prompts from a named pipe, until its writer leaves."""
    with path.open("rb", buffering=0) as pipe:
        yield from read_prompt_stream(pipe, str(path))


def _arriving() -> Iterator[Entry]:
    # no buffer between: a reader that waits in a thread must hold no lock when the process ends
    stdin: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return read_prompt_stream(stdin)


def _typed() -> Iterator[Entry]:
    """Prompts from a person at a terminal, until the end of input."""
    talk("Type a prompt and press Enter; Ctrl-D ends.")
    while True:
        if level() > 0:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield text_prompt(line.rstrip("\n"), "the terminal")
