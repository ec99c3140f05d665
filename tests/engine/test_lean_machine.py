"""Recording, replaying and looking on a machine that has only what these need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dflash.draftfile.reader import open_draft_file

NEEDED_ELSEWHERE = ["zstandard", "gguf", "torchao", "rfc8785", "jsonschema"]

LEAN = """
import sys
from importlib.machinery import PathFinder

missing = set(sys.argv[1].split(","))

class Lean(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        found = super().find_distributions(*context)
        return (one for one in found if (one.name or "").lower() not in missing)

sys.meta_path = [Lean if finder is PathFinder else finder for finder in sys.meta_path]

from dflash.cli.main import run

code = max(run(words.split("\\n")) for words in sys.argv[2:])
assert not missing & set(sys.modules), missing & set(sys.modules)
sys.exit(code)
"""


def lean(folder, *commands):
    words = ["\n".join(map(str, command)) for command in commands]
    return subprocess.run(
        [sys.executable, "-c", LEAN, ",".join(NEEDED_ELSEWHERE), *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("dense", [[], ["--dense"]])
def test_nothing_that_is_needed_elsewhere_is_imported(tiny_folder, in_folder, dense):
    record = ["record", "hello", "--target", tiny_folder, "-o", "run.parquet", "--max-new-tokens", 8, *dense]
    done = lean(in_folder, record, ["replay", "run.parquet", "--check"], ["info", "run.parquet"])
    assert done.returncode == 0, done.stderr
    assert open_draft_file(in_folder / "run.parquet").requests == 1


def test_a_compressed_prompt_file_says_what_to_install(tiny_folder, in_folder):
    (in_folder / "p.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    done = lean(in_folder, ["record", "--prompts", "p.jsonl.zst", "--target", tiny_folder])
    assert done.returncode == 2
    assert "p.jsonl.zst: expected the package zstandard" in done.stderr
