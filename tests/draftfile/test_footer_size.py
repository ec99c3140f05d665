"""A file of very many row groups stays one that readers open: groups grow as the footer fills."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sample_drafts import header, tables, write

from dflash.draftfile import footer, layout, writer
from dflash.draftfile.doctor import problems
from dflash.draftfile.errors import MetadataTooLarge
from dflash.draftfile.reader import open_draft_file

LIMIT = 96 << 10


def footer_size(path: Path) -> int:
    return int(struct.unpack("<I", path.read_bytes()[-8:-4])[0])


def small(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    monkeypatch.setattr(footer, "METADATA_LIMIT", LIMIT)
    monkeypatch.setattr(writer, "GROUPS_LIMIT", LIMIT // 2 if grows else 1 << 40)


@pytest.mark.parametrize("requests", [3, 20, 60])
@pytest.mark.parametrize("features", [False, True])
def test_a_footer_never_outgrows_its_limit(
    requests: int, features: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, grows=True)
    path = tmp_path / "run.parquet"
    parts = tables(0, requests, rounds=2, features=features)
    write(path, parts, header(features={"mode": "all" if features else "none"}), row_group_rows=1)
    assert footer_size(path) <= LIMIT
    file = open_draft_file(path)
    assert file.rows == sum(table.num_rows for table in parts)
    assert file.row_groups < requests or requests == 3
    assert list(problems(file, deep=True)) == []


def test_without_growing_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, grows=False)
    path = tmp_path / "run.parquet"
    write(path, tables(0, 20, rounds=2), header(), row_group_rows=1)
    with pytest.raises(MetadataTooLarge):
        open_draft_file(path)


def test_what_a_group_takes_is_not_underrated(tmp_path: Path) -> None:
    sizes, rated = [], []
    for requests in (4, 16):
        path = tmp_path / f"{requests}.parquet"
        write(
            path,
            tables(0, requests, rounds=3, features=True),
            header(features={"mode": "all"}),
            row_group_rows=1,
        )
        file = pq.ParquetFile(path)
        sizes.append(footer_size(path))
        rated.append(sum(layout.footer_bytes(file.read_row_group(n)) for n in range(file.num_row_groups)))
    assert rated[1] - rated[0] >= sizes[1] - sizes[0]
