"""A run of several files: parts in order, each once, under one header."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_drafts import header, tables, write

from dflash.draftfile import errors
from dflash.draftfile.run import draft_paths, left_out, open_run, open_runs

PARTS = {"a": 0, "b": 1, "c": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, (name, part) in enumerate(PARTS.items()):
        head = header(created_at=f"2026-11-29T12:00:0{part}Z", shard={"index": part, "count": 3})
        (table,) = tables(seed, 1)
        unique = table.set_column(0, table.schema.field(0), [[f"request-{part}"] * table.num_rows])
        write(tmp_path / f"{name}.parquet", [unique], head, part=part, parts=3 if part == 2 else None)
    return tmp_path


def test_a_folder_is_a_run(folder: Path) -> None:
    run = open_run([folder])
    assert [file.part for file in run.files] == [0, 1, 2]
    names = [
        name for table in run.tables(["request_id"]) for name in table["request_id"].unique().to_pylist()
    ]
    assert names == ["request-0", "request-1", "request-2"]
    assert (run.requests, run.summary.requests, run.run_id) == (3, 3, "run")
    assert run.rows == sum(table.num_rows for table in run.tables())
    assert run.header.seed == header()["seed"]


def test_files_may_come_in_any_order(folder: Path) -> None:
    run = open_run([folder / "c.parquet", folder / "a.parquet", folder / "b.parquet"])
    assert [file.part for file in run.files] == [0, 1, 2]


def test_a_file_named_twice_is_read_once(folder: Path) -> None:
    assert len(draft_paths([folder, folder / "a.parquet", folder])) == 3


@pytest.mark.parametrize(("gone", "part"), [("a", "0"), ("b", "1"), ("c", "2")])
def test_a_missing_part_is_named(folder: Path, gone: str, part: str) -> None:
    (folder / f"{gone}.parquet").unlink()
    with pytest.raises(errors.PartMissing, match=f"part {part}"):
        open_run([folder])


def test_a_repeated_part_is_named(folder: Path) -> None:
    (folder / "copy.parquet").write_bytes((folder / "b.parquet").read_bytes())
    with pytest.raises(errors.PartRepeated, match="part 1 in both .*b.parquet and .*copy.parquet"):
        open_run([folder])


def test_a_part_past_the_last_is_refused(folder: Path) -> None:
    write(folder / "d.parquet", [], part=3, parts=None)
    with pytest.raises(errors.PartBeyond, match="3 parts, found part 3"):
        open_run([folder])


def test_unequal_headers_are_refused_by_key(folder: Path) -> None:
    write(folder / "b.parquet", [], header(seed=1), part=1, parts=None, overwrite=True)
    with pytest.raises(errors.HeadersDiffer, match="another seed"):
        open_run([folder])


def test_several_runs_are_told_apart(folder: Path) -> None:
    write(folder / "other.parquet", tables(9, 1), run_id="other")
    assert {run.run_id for run in open_runs([folder])} == {"run", "other"}
    with pytest.raises(errors.SeveralRuns, match="run, other"):
        open_run([folder])


def test_a_request_in_two_files_is_refused(tmp_path: Path) -> None:
    for part in (0, 1):
        write(tmp_path / f"{part}.parquet", tables(part, 1), part=part, parts=2 if part else None)
    with pytest.raises(errors.RequestRepeated, match="'request-0'"):
        list(open_run([tmp_path]).tables(["request_id"]))


def test_no_files_at_all(tmp_path: Path) -> None:
    with pytest.raises(errors.NoDraftFiles):
        open_run([tmp_path])
    with pytest.raises(errors.NoDraftFiles):
        open_run([])
    with pytest.raises(errors.FileMissing):
        open_run([tmp_path / "missing"])


def verdicts(path: Path, **more: str) -> Path:
    """A Parquet file that says of itself that it holds verdicts."""
    schema = pa.schema([("policy", pa.string())], {"dflash.verdicts_version": "1", **more})
    pq.write_table(schema.empty_table(), path)
    return path


def test_a_folder_stands_for_its_draft_files_and_verdicts_beside_them_are_left_out(folder: Path) -> None:
    kept = draft_paths([folder])
    beside = [verdicts(folder / name) for name in ("0.parquet", "z.parquet")]
    assert draft_paths([folder]) == kept
    assert left_out([folder, *beside]) == beside
    assert open_run([folder]).requests == 3


def test_verdicts_are_called_what_they_are(folder: Path) -> None:
    path = verdicts(folder / "v.parquet")
    for given in ([path], [folder, path]):
        with pytest.raises(
            errors.VerdictsGiven, match=r"v.parquet holds verdicts of `replay -o`, not a draft"
        ):
            open_runs(given)


def test_what_else_is_no_draft_file_in_a_folder_is_not_left_out(folder: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), folder / "v.parquet")
    with pytest.raises(errors.NotADraftFile, match="dflash.format_version is missing"):
        open_runs([folder])
    (folder / "v.parquet").write_bytes(b"")
    with pytest.raises(errors.FileEmpty):
        open_runs([folder])


def test_a_folder_of_verdicts_alone_has_no_draft_files(tmp_path: Path) -> None:
    verdicts(tmp_path / "v.parquet")
    with pytest.raises(errors.NoDraftFiles):
        draft_paths([tmp_path])
