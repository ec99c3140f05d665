"""Verdict files: what each policy decided in every round, as Parquet, with the digests of the draft files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.metadata import VERDICTS
from dflash.draftfile.publish import Publication, writing
from dflash.draftfile.reader import DraftFile
from dflash.policy.noise import I64
from dflash.replay.batch import Batch
from dflash.replay.tally import Judged

VERDICTS_VERSION = 1

_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("anchor_position", pa.int32(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("accepted", pa.int16(), nullable=False),
        pa.field("accepted_nodes", pa.list_(pa.int16()), nullable=False),
        pa.field("bonus_token", pa.int32()),
        pa.field("coin_tie", pa.bool_(), nullable=False),
    ]
)


class Verdicts(Protocol):
    """Takes what policies decide."""

    def add(self, policy: str, batch: Batch, rows: Sequence[I64], judged: Sequence[Judged]) -> None:
        """Take what a policy decided in some rows of one row group."""


class VerdictPieces:
    """Keeps decisions in pieces on disk, in the process that made them, until a writer takes them in order.

    Args:
        folder: An empty one that all processes see.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def add(self, policy: str, batch: Batch, rows: Sequence[I64], judged: Sequence[Judged]) -> None:
        """Write one piece, none if there is nothing in it."""
        if rows:
            table = _tables(policy, batch, rows, judged)
            path = self._folder / f"{batch.file.part}-{self._made:09d}.arrow"
            with pa.ipc.new_file(path, _SCHEMA) as writer:
                writer.write_table(table)
            self._made += 1

    def of(self, file: DraftFile) -> Iterator[pa.Table]:
        """The pieces of one file of a run, in the order in which they were made."""
        for path in sorted(self._folder.glob(f"{file.part}-*.arrow")):
            with pa.ipc.open_file(path) as reader:
                yield reader.read_all()


class VerdictWriter:
    """Writes one row a round and policy; the file appears whole at `finish` or not at all.

    `accepted_nodes` are indices into the round as recorded; `bonus_token` is null where it is not known.

    Args:
        path: Where the file will appear.
        parents: Content digests of the draft files.
        policies: In the order of judging.
        overwrite: Replace what is there already.

    Raises:
        OutputExists: The path exists and may not be replaced.
        FolderNotWritable: The folder refuses new files.
    """

    def __init__(
        self, path: Path, parents: Sequence[str], policies: Sequence[str], *, overwrite: bool = False
    ) -> None:
        self._publication = Publication(path, overwrite=overwrite)
        self._facts = {
            VERDICTS: str(VERDICTS_VERSION),
            "dflash.parents": canonical_json(list(parents)),
            "dflash.policies": canonical_json(list(policies)),
        }
        self._writer = pq.ParquetWriter(
            self._publication.file, _SCHEMA, compression="zstd", write_page_checksum=True
        )

    def __enter__(self) -> VerdictWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the writer would complain of a closed file later; what it writes now is thrown away
        with suppress(OSError):
            self._writer.close()
        self._publication.discard()

    def add(self, policy: str, batch: Batch, rows: Sequence[I64], judged: Sequence[Judged]) -> None:
        """Write what a policy decided in some rows of one row group."""
        if rows:
            with writing(self._publication.path):
                self._writer.write_table(_tables(policy, batch, rows, judged))

    def take(self, pieces: VerdictPieces, files: Sequence[DraftFile]) -> None:
        """Write the pieces of several files of one run, file by file."""
        for file in files:
            for table in pieces.of(file):
                with writing(self._publication.path):
                    self._writer.write_table(table)

    def finish(self) -> None:
        """Close the file and give it its name."""
        self._writer.add_key_value_metadata(self._facts)
        with writing(self._publication.path):
            self._writer.close()
            self._publication.publish()


def _tables(policy: str, batch: Batch, rows: Sequence[I64], judged: Sequence[Judged]) -> pa.Table:
    tables = [_table(policy, batch, *item) for item in zip(rows, judged, strict=True)]
    order = np.argsort(np.concatenate(rows), kind="stable")
    return pa.concat_tables(tables).take(pa.array(order))


def _table(policy: str, batch: Batch, rows: I64, judged: Judged) -> pa.Table:
    rounds, decision = judged.rounds, judged.decision
    source = batch.table.select(["request_id", "round", "anchor_position"]).take(pa.array(rows))
    nodes = np.flatnonzero(decision.accepted)
    kept = rounds.node_index[nodes].astype(np.int16)
    offsets = np.concatenate(([0], np.cumsum(decision.accepted_count))).astype(np.int32)
    columns = [
        *source.columns,
        pa.array([policy] * len(rounds)),
        pa.array(decision.accepted_count.astype(np.int16)),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(kept)),
        pa.array(decision.bonus.astype(np.int32), mask=decision.bonus < 0),
        pa.array(decision.coin_tie),
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)
