"""What is read is never written over, and outputs that cannot be written are found before the work."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_runs"
ONTO_INPUTS = [
    "tune F -o F",
    "tune F --save-cost F",
    "tune F -o ./x/../F",
    "replay F -o F",
    "replay F --rescore nowhere -o F",
    "record x --drafter file:F -o F",
    "record x --drafter suffix --warm F -o F",
    "record --prompts F -o F",
    "diff F G --html -o F",
    "diff F G --html -o G",
]
UNWRITABLE = [
    ("tune F -o none/best.toml", "no such folder"),
    ("tune F --save-cost none/cost.json", "no such folder"),
    ("tune F --surface map.jpg", "end in .png"),
    ("tune F -o one --save-cost one", "different outputs"),
    ("tune F -o G", "exists"),
]


# each output of its own, and all of one command
FULL = [
    "replay F --policy match:length=2 -o v.parquet",
    "diff F G -o d.html",
    "tune F -o best.toml",
    "tune F --save-cost cost.json",
    "tune F --surface map.png",
    "tune F -o best.toml --save-cost cost.json --surface map.png",
]


@pytest.fixture
def runs(in_folder: Path) -> dict[str, bytes]:
    """Two recordings, F and G, and a folder."""
    shutil.copy(SAMPLES / "dense-ngram-tree.parquet", "F")
    shutil.copy(SAMPLES / "ngram-tree.parquet", "G")
    (in_folder / "x").mkdir()
    return contents(in_folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("words", ONTO_INPUTS)
def test_an_input_is_no_output_even_with_overwrite(
    in_folder: Path, runs: dict[str, bytes], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert main.run([*words.split(), "--overwrite"]) == 2
    assert contents(in_folder) == runs
    if "--prompts" not in words:
        assert "one of the files that are read" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "told"), UNWRITABLE)
def test_what_cannot_be_written_is_refused_before_the_search(
    in_folder: Path, runs: dict[str, bytes], capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    assert main.run(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert contents(in_folder) == runs


@pytest.mark.parametrize("words", FULL)
def test_what_finds_no_room_is_said_and_leaves_nothing(
    in_folder: Path, runs: dict[str, bytes], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """Files may have 100 bytes here, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        code = main.run(words.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert error.startswith("error: Writing ")
    assert error.endswith(" failed: File too large; nothing was published.")
    assert contents(in_folder) == runs


@pytest.mark.parametrize("closed", [True, False])
def test_a_stdout_that_takes_nothing_is_no_fault(
    in_folder: Path, runs: dict[str, bytes], closed: bool
) -> None:
    """A full one is said in one line; one that is closed is what the user wanted."""
    for words in ("info F", "info F --json", "cat F", "replay F", "policies", "schema", "--help"):
        command = [sys.executable, "-m", "dflash", *words.split()]
        if closed:
            command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == (0 if closed else 2), words
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
        assert "fault in dflash" not in done.stderr
        assert len(lines) == (not closed), done.stderr
        assert closed or "No space left on device" in lines[0]
