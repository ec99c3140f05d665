"""The engine on the older transformers of the tested pairs, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OLDER = Path(sys.prefix) / "share" / "transformers-5.17.0"
PROGRAM = """
import sys, torch, transformers
from pathlib import Path
assert transformers.__version__ == "5.17.0", transformers.__version__
from tiny_model import write_tiny
from dflash.cli.main import run
folder = write_tiny(Path("tiny"))
base = ["record", "hello", "ab ab ab", "--target", str(folder), "--max-new-tokens", "24", "-q"]
for drafter, temperature in (("ngram", "0"), ("self", "0.8"), ("none", "0.8")):
    words = ["--drafter", drafter, "--temperature", temperature, "--dense", "-o", f"{drafter}.parquet"]
    assert run([*base, *words]) == 0, drafter
    assert run(["replay", f"{drafter}.parquet", "--check"]) == 0, drafter
"""


@pytest.mark.slow
def test_record_and_replay_work_and_give_the_same_tokens(root, in_folder, tiny, record, output_tokens):
    if not OLDER.is_dir():
        pytest.skip("transformers 5.17.0 is not beside this environment; `make venv` puts it there")
    path = os.pathsep.join([str(OLDER), str(root), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    from dflash.draftfile.reader import open_draft_file

    prompts = ("hello", "ab ab ab")
    for drafter, temperature in (("ngram", 0.0), ("self", 0.8)):
        file = open_draft_file(in_folder / f"{drafter}.parquet")
        assert file.header.raw["engine"]["transformers"] == "5.17.0"
        older = output_tokens([row for table in file.tables() for row in table.to_pylist()])
        here = record(tiny, prompts, drafter=drafter, temperature=temperature, seed=0, max_new_tokens=24)
        assert output_tokens(here) == older
