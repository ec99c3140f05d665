"""Goes on with a recording that was cut short: what of it is finished, and whether it may be kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.columns import arrow_schema
from dflash.draftfile.errors import DraftFileError, JournalEmpty
from dflash.draftfile.header import Header, validate_header
from dflash.draftfile.invariants import check_rows
from dflash.draftfile.journal import Journal, journal_path
from dflash.draftfile.journal_reader import JournalReader, open_journal
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.requests import check_requests, request_starts
from dflash.draftfile.view import Limits
from dflash.errors import DflashError

VERSIONS_AND_TIME = {"created_at", "host", "git.commit", "git.dirty"} | {
    f"engine.{name}" for name in ("toolkit", "torch", "triton", "transformers", "driver", "rounds", "overlap")
}
# how many requests ran side by side is no part of what they are
ROOM = {"lanes", "memory"}
# what makes two requests the same, beside the prompt: where it stands, and what is asked of it
PLACE = ("ordinal", "category", "conversation", "turn")
SETTINGS = ("sampling", "seed", "max_new_tokens", "stop")

Key = bytes


class ResumeRefused(DraftFileError):
    """The recording to go on with was made otherwise."""

    def __init__(self, path: Path, differences: Sequence[str]) -> None:
        super().__init__(
            f"{path} was recorded otherwise: {'; '.join(differences)}. "
            "Go on with the same models and settings, or pass --overwrite instead of --resume."
        )


class Earlier(NamedTuple):
    """A recording that was cut short.

    Attributes:
        requests: Reads its finished requests, in the order of the file or of their closing.
    """

    path: Path
    header: Header
    requests: Callable[[], Iterator[pa.Table]]


def find_earlier(output: Path) -> Earlier | None:
    """What an output's journal or the output itself holds; the file wins if both are of one recording.

    Raises:
        OpenError: The output is no draft file, or the journal no journal.
    """
    journal = _journal(journal_path(output))
    file = open_draft_file(output) if output.exists() else None
    if journal is not None and (file is None or not same_recording(file, journal)):
        return Earlier(journal.path, journal.header, lambda: _closed(journal))
    return None if file is None else Earlier(output, file.header, lambda: _finished(file))


def same_recording(file: DraftFile, journal: JournalReader) -> bool:
    """Whether a file is what became of a journal; a shard that is gone on with keeps its run."""
    started = [source.header.raw["created_at"] for source in (file, journal)]
    return (file.run_id, file.part) == (journal.run_id, journal.part) and started[0] == started[1]


def require_same_header(earlier: Earlier, header: Mapping[str, Any]) -> None:
    """Refuses to go on under other settings; versions, machine, time and lanes may differ.

    Raises:
        ResumeRefused: Names each difference.
    """
    expected, found = dict(_leaves(earlier.header.raw)), dict(_leaves(validate_header(header).raw))
    differences = [
        f"{name} (expected {_short(expected.get(name))}, found {_short(found.get(name))})"
        for name in sorted(expected.keys() | found.keys())
        if _matters(name) and expected.get(name) != found.get(name)
    ]
    if differences:
        raise ResumeRefused(earlier.path, differences)


def _matters(name: str) -> bool:
    return name not in VERSIONS_AND_TIME and name.split(".")[0] not in ROOM


class Asking(NamedTuple):
    """What asks for a request.

    Attributes:
        key: Digest of its prompt, its place and its settings.
        place: Digest of the former two.
        settings: What is asked, by name.
    """

    key: Key
    place: Key
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, prompt_tokens: Sequence[int], prompt_text: str | None, info: Mapping[str, Any]) -> Asking:
        """Of a prompt, and of the request's own facts."""
        tokens = hashlib.sha256(np.asarray(prompt_tokens, "<i4").tobytes()).hexdigest()

        def digest(names: Sequence[str]) -> Key:
            asked = canonical_json([tokens, prompt_text, {name: info.get(name) for name in names}])
            return hashlib.sha256(asked.encode()).digest()

        return cls(digest(SETTINGS + PLACE), digest(PLACE), {name: info.get(name) for name in SETTINGS})


class Kept:
    """Finished requests of an earlier recording, handed out as the new one asks for them.

    They are read in the order in which they were kept; only what is asked for out of order is held.

    Attributes:
        names: The ids under which the journal holds them.
    """

    def __init__(self, names: Mapping[str, Asking], tables: Iterator[pa.Table] = iter(())) -> None:
        self.names = frozenset(names)
        self._wanted, self._tables = dict.fromkeys(asking.key for asking in names.values()), tables
        self._read: dict[Key, pa.Table] = {}
        self._settings = {asking.place: asking.settings for asking in names.values()}

    def __len__(self) -> int:
        return len(self._wanted)

    def take(self, key: Key) -> pa.Table | None:
        """The rows of a request, or None if it is still to be run; each is handed out once."""
        if key not in self._wanted:
            return None
        while key not in self._read:
            table = next(self._tables)
            self._read[_asking(table).key] = table
        del self._wanted[key]
        return self._read.pop(key)

    def changed(self, asking: Asking) -> dict[str, str]:
        """What a request asks otherwise than one that was kept of the same prompt: the old, and the new."""
        kept = self._settings.get(asking.place, asking.settings)
        return {
            name: f"{_short(kept[name])}, now {_short(value)}"
            for name, value in asking.settings.items()
            if kept[name] != value
        }

    def rest(self) -> Iterator[pa.Table]:
        """What nobody has asked for."""
        for key in list(self._wanted):
            table = self.take(key)
            if table is not None:
                yield table


def carry_over(earlier: Earlier, journal: Journal) -> Kept:
    """Copies the finished requests into the journal of the new recording, from where they are kept."""
    names = dict[str, Asking]()
    for table in earlier.requests():
        name = table["request_id"][0].as_py()
        journal.append(name, table)
        journal.close_request(name)
        names[name] = _asking(table)
    journal.sync()
    return Kept(names, _carried(journal))


def free_name(name: str, taken: Container[str]) -> str:
    """The name, with as many plus signs as make it a new one."""
    while name in taken:
        name += "+"
    return name


def renamed(table: pa.Table, request_id: str) -> pa.Table:
    """The rows of a request under another id."""
    if not table.num_rows or table["request_id"][0].as_py() == request_id:
        return table
    position = table.column_names.index("request_id")
    names = pa.array([request_id] * table.num_rows, pa.string())
    return table.set_column(position, table.schema.field(position), names)


def _journal(path: Path) -> JournalReader | None:
    try:
        return open_journal(path) if path.exists() else None
    except JournalEmpty:
        # killed before the header was written
        return None


def _carried(journal: Journal) -> Iterator[pa.Table]:
    for entry in open_journal(journal.path).entries():
        yield entry.table


def _closed(journal: JournalReader) -> Iterator[pa.Table]:
    limits, seen = Limits.of(journal.header), set[str]()
    for entry in journal.entries():
        if entry.closed and _is_finished(entry.table) and _is_sound(entry.table, limits, seen):
            seen.add(entry.request_id)
            yield entry.table


def _is_sound(table: pa.Table, limits: Limits, seen: set[str]) -> bool:
    """Whether the rows may be kept; a damaged request is run again."""
    try:
        check_rows(table, limits)
        return len(check_requests(table, seen)) == 1
    except DflashError:
        return False


def _finished(file: DraftFile) -> Iterator[pa.Table]:
    names = arrow_schema(file.header.features["mode"] != "none").names
    for group in file.tables(names):
        starts = [*request_starts(group), group.num_rows]
        for start, end in zip(starts, starts[1:], strict=False):
            table = group.slice(start, end - start)
            if _is_finished(table):
                yield table


def _is_finished(table: pa.Table) -> bool:
    reasons = table["truncated_by"].drop_null()
    return len(reasons) > 0 and reasons[-1].as_py() not in ("none", "interrupted")


def _asking(table: pa.Table) -> Asking:
    first = table.slice(0, 1).select(["prompt_tokens", "prompt_text", "request_info"]).to_pylist()[0]
    return Asking.of(first["prompt_tokens"], first["prompt_text"], json.loads(first["request_info"]))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
