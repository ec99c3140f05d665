"""What is read is never written over, and outputs that cannot be written are found before the work."""

from __future__ import annotations

import shutil
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
