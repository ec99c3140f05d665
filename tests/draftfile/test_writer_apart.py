"""Row groups that a thread of its own encodes: the same file, and no failure lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_drafts import header, tables, write

from dflash.draftfile.errors import WriteFailed
from dflash.draftfile.writer import DraftFileWriter


def test_the_file_is_the_same_whoever_encodes_its_row_groups(tmp_path: Path) -> None:
    parts = tables(5, 9, rounds=6, features=True)
    head = header(features={"mode": "all", "encoding": "int8"})
    found = [
        write(tmp_path / str(apart), parts, head, apart=apart, row_group_rows=10) for apart in (False, True)
    ]
    assert found[0].content_digest == found[1].content_digest
    files = [pq.ParquetFile(one.path) for one in found]
    assert files[0].num_row_groups == files[1].num_row_groups > 2
    assert files[0].read().equals(files[1].read())


@pytest.mark.parametrize("at", ["a later row group", "the end"])
def test_what_a_thread_could_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def full(self: pq.ParquetWriter, *given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with DraftFileWriter(
        tmp_path / "run.parquet", header(), run_id="run", apart=True, row_group_rows=1
    ) as writer:
        first, second = tables(5, 2, rounds=6)
        writer.write_request(first)
        with pytest.raises(WriteFailed, match="No space"):
            writer.finish() if at == "the end" else writer.write_request(second)
    assert list(tmp_path.iterdir()) == []
