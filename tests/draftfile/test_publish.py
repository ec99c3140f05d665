"""A file appears whole or not at all, and never in the place of another one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_drafts import header, tables, write

from dflash.draftfile import metadata, publish
from dflash.draftfile.errors import FolderNotWritable, OutputBusy, OutputExists, OutputIsFolder, WriteFailed
from dflash.draftfile.publish import Publication
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.writer import DraftFileWriter


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_the_published_file_stays(tmp_path: Path) -> None:
    write(tmp_path / "run.parquet", tables(0, 1))
    assert names(tmp_path) == ["run.parquet"]


def test_while_writing_only_the_partial_is_there(tmp_path: Path) -> None:
    with DraftFileWriter(tmp_path / "run.parquet", header(), run_id="r") as writer:
        writer.write_request(tables(0, 1)[0])
        assert "run.parquet" not in names(tmp_path)
        assert "run.parquet.partial" in names(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("flushed", [True, False])
def test_an_exception_leaves_nothing(tmp_path: Path, flushed: bool) -> None:
    def fail() -> None:
        with DraftFileWriter(tmp_path / "a", header(), run_id="r", row_group_rows=1) as writer:
            if flushed:
                writer.write_request(tables(0, 1)[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path) == []


def test_an_existing_output_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "run.parquet").write_text("precious")
    with pytest.raises(OutputExists, match="--overwrite"):
        DraftFileWriter(tmp_path / "run.parquet", header(), run_id="r")
    assert names(tmp_path) == ["run.parquet"]
    assert (tmp_path / "run.parquet").read_text() == "precious"


def test_overwrite_keeps_the_old_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    first = write(path, tables(0, 1))
    with DraftFileWriter(path, header(), run_id="r", overwrite=True) as writer:
        writer.write_request(tables(1, 1)[0])
    assert open_draft_file(path).content_digest == first.content_digest
    second = write(path, tables(1, 1), overwrite=True)
    assert open_draft_file(path).content_digest == second.content_digest != first.content_digest


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    path = tmp_path / "run.parquet"
    with DraftFileWriter(path, header(), run_id="r") as writer:
        path.write_text("precious")
        with pytest.raises(OutputExists):
            writer.finish()
    assert path.read_text() == "precious"
    assert names(tmp_path) == ["run.parquet"]


def test_file_systems_without_hard_links_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    write(tmp_path / "run.parquet", tables(0, 1))
    assert names(tmp_path) == ["run.parquet"]
    assert open_draft_file(tmp_path / "run.parquet").requests == 3 - 2


def _no_links(*_: Any) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_the_second_writer_of_a_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    with DraftFileWriter(path, header(), run_id="r") as writer:
        with pytest.raises(OutputBusy):
            DraftFileWriter(path, header(), run_id="r")
        with pytest.raises(OutputBusy):
            DraftFileWriter(path, header(), run_id="r", overwrite=True)
        writer.finish()
    assert open_draft_file(path).rows == 0


def test_of_many_racing_writers_one_wins(tmp_path: Path) -> None:
    path, barrier, outcomes = tmp_path / "run.parquet", threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait()
        try:
            write(path, tables(number, 1), run_id=str(number))
            outcomes.append(number)
        except (OutputBusy, OutputExists):
            pass

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number) for number in outcomes] == [open_draft_file(path).run_id]
    assert names(tmp_path) == ["run.parquet"]


def test_a_partial_left_by_a_crash_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run.parquet.partial").write_text("torn")
    (tmp_path / "run.parquet.lock").write_text("")
    write(tmp_path / "run.parquet", tables(0, 1))
    assert names(tmp_path) == ["run.parquet"]


def test_a_partial_linked_to_the_published_file_is_not_written_through(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    first = write(path, tables(0, 1))
    os.link(path, tmp_path / "run.parquet.partial")
    with DraftFileWriter(path, header(), run_id="r", overwrite=True) as writer:
        writer.write_request(tables(1, 1)[0])
    assert open_draft_file(path).content_digest == first.content_digest


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_folder_that_takes_no_files_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FolderNotWritable, match=folder):
        DraftFileWriter(tmp_path / folder / "run.parquet", header(), run_id="r")


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FolderNotWritable, match="Permission denied"):
        Publication(tmp_path / "run.parquet")
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_a_folder_where_no_file_can_be_made_is_not_told_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).endswith(".lock"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return opened(path, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FolderNotWritable, match="no file can be made"):
        Publication(tmp_path / "run.parquet")


def test_everything_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def note(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            steps.append("fsync folder" if is_folder else name)
            return real(*args)

        return noted

    monkeypatch.setattr(os, "fsync", note("fsync", os.fsync))
    monkeypatch.setattr(os, "link", note("link", os.link))
    monkeypatch.setattr(publish, "sync_folder", note("folder", publish.sync_folder))
    monkeypatch.setattr("dflash.draftfile.writer.stamp", note("stamp", metadata.stamp))
    write(tmp_path / "run.parquet", tables(0, 1))
    assert steps == ["stamp", "fsync", "link", "folder", "fsync folder"]


STEPS = ("dflash.draftfile.writer.stamp", "os.fsync", "os.link", "dflash.draftfile.publish.sync_folder")


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_between_the_steps_publishes_nothing_or_everything(tmp_path: Path, step: str) -> None:
    path = tmp_path / "run.parquet"
    process = multiprocessing.get_context("spawn").Process(target=_killed_at, args=(path, step))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert path.exists() == (step == STEPS[-1])
    if path.exists():
        assert open_draft_file(path).requests == 1
        path.unlink()
    write(path, tables(1, 1))
    assert names(tmp_path) == ["run.parquet"]


def _killed_at(path: Path, step: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write(path, tables(0, 1))


def test_a_failed_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailed, match="No space"):
        write(tmp_path / "run.parquet", tables(0, 1))
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("rows", [1, 50_000])
def test_a_full_disk_is_told_in_words(tmp_path: Path, rows: int) -> None:
    with (
        DraftFileWriter(tmp_path / "run.parquet", header(), run_id="r", row_group_rows=rows) as writer,
        Path("/dev/full").open("r+b", buffering=0) as full,
    ):
        os.dup2(full.fileno(), writer._publication.file.fileno())
        with pytest.raises(WriteFailed, match="run.parquet failed"):
            fill(writer)
    assert names(tmp_path) == []


def fill(writer: DraftFileWriter) -> None:
    writer.write_request(tables(0, 1)[0])
    writer.finish()


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    for overwrite in (False, True):
        with pytest.raises(OutputIsFolder):
            DraftFileWriter(tmp_path, header(), run_id="r", overwrite=overwrite)
