"""What replay costs, against reading: the same columns read by pyarrow and replayed, in interleaved pairs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.threads import Threads
from dflash.policy.registry import Policy, parse_policy
from dflash.replay.run import replay

QUERY = """
select length, count(*) from (
    select coalesce(
        list_position(
            list_transform(
                list_zip(node_token, slot_choice[1:len(node_token)]), lambda pair: pair[1] = pair[2]
            ),
            false
        ) - 1,
        len(node_token)
    ) as length
    from read_parquet($path) where kind = 0
) group by length order by length
"""


class NotedFile(DraftFile):
    """A draft file that notes which columns it was asked for, once a reading."""

    readings: list[tuple[str, ...]]

    @classmethod
    def open(cls, path: Path) -> NotedFile:
        """Open a file, as `open_draft_file` does."""
        file = open_draft_file(path)
        noted = cls(**{item.name: getattr(file, item.name) for item in fields(DraftFile)})
        object.__setattr__(noted, "readings", [])
        return noted

    def tables(
        self, columns: Sequence[str] | None = None, threads: Threads | None = None
    ) -> Iterator[pa.Table]:
        """One table per row group; see `DraftFile.tables`."""
        self.readings.append(tuple(self.schema.names if columns is None else columns))
        return DraftFile.tables(self, columns, threads)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time by the clock, and of all threads together."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Seconds:
        """Time one call."""
        wall, cpu = perf_counter(), process_time()
        work()
        return cls(perf_counter() - wall, process_time() - cpu)


@dataclass(frozen=True, slots=True)
class Compared:
    """One question, asked of replay and of a yardstick in interleaved pairs.

    Attributes:
        yardstick: what replay is compared with.
        columns: that replay read.
        limit: what the ratio should not exceed.
        pairs: yardstick and replay.
    """

    policy: str
    yardstick: str
    columns: tuple[str, ...]
    limit: float
    pairs: tuple[tuple[Seconds, Seconds], ...]

    @property
    def ratio(self) -> float:
        """Median over the pairs of replay's time by the clock to the yardstick's."""
        return median(ours.wall / theirs.wall for theirs, ours in self.pairs)

    @property
    def cpu_ratio(self) -> float:
        """The same of the time of all threads, which other work on the machine disturbs less."""
        return median(ours.cpu / theirs.cpu for theirs, ours in self.pairs)


def read(path: Path, columns: Sequence[str]) -> None:
    """The yardstick: read columns row group by row group, page checksums verified, and drop them."""
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for group in range(parquet.metadata.num_row_groups):
            parquet.read_row_group(group, columns=list(columns))


def against_read(path: Path, policy: str, limit: float, pairs: int) -> Compared:
    """Compare a replay with a read of the columns that it reads."""
    return _compare(path, policy, limit, pairs, "pyarrow read", lambda columns: read(path, columns))


def against_duckdb(path: Path, limit: float, pairs: int) -> Compared | None:
    """Compare `match` with a query that counts accepted lengths; None if DuckDB is not installed.

    Raises:
        RuntimeError: the two count differently.
    """
    if find_spec("duckdb") is None:
        return None
    import duckdb

    connection = duckdb.connect()

    def query() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = connection.execute(QUERY, {"path": str(path)}).fetchall()
        return found

    row = replay([open_draft_file(path)], [parse_policy("match")]).rows[0]
    if [count for _, count in query()] != list(row.lengths):
        raise RuntimeError("DuckDB and replay count other accepted lengths")
    return _compare(path, "match", limit, pairs, "DuckDB query", lambda _: query())


def _compare(
    path: Path, text: str, limit: float, pairs: int, name: str, yardstick: Callable[[Sequence[str]], object]
) -> Compared:
    file, policies = NotedFile.open(path), [parse_policy(text)]
    replay([file], policies)
    columns = file.readings[0]
    yardstick(columns)
    found = []
    for number in range(pairs):
        works = [lambda: yardstick(columns), lambda: replay([file], policies)]
        seconds = [Seconds.of(work) for work in (works if number % 2 else works[::-1])]
        theirs, ours = seconds if number % 2 else seconds[::-1]
        found.append((theirs, ours))
    return Compared(text, name, columns, limit, tuple(found))


@dataclass(frozen=True, slots=True)
class Many:
    """Many policies over one file.

    Attributes:
        readings: how often the file was read.
    """

    policies: int
    readings: int
    seconds: Seconds


def many(path: Path, count: int) -> Many:
    """Re-judge a file of chains of 8 under `count` policies that all differ."""
    rules = ["match", "greedy", "speculative", "block"]
    rules += [f"threshold:t={number / 1000}" for number in range(1, -(-count // 8))]
    asked: list[Policy] = []
    for rule in rules:
        joint = "," if ":" in rule else ":"
        asked += [parse_policy(f"{rule}{joint}length={length}") for length in range(1, 9)]
    file = NotedFile.open(path)
    seconds = Seconds.of(lambda: replay([file], asked[:count]))
    return Many(len(asked[:count]), len(file.readings), seconds)


def peak_bytes(path: Path, policy: str) -> int:
    """Most memory that a process held which replayed the file and did nothing else."""
    words = [sys.executable, "-m", "dflash.bench.replay_peak", str(path), policy]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return int(done.stdout)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
