"""Shards: parts of one run, recorded apart, that joined are the recording of the whole list."""

from __future__ import annotations

import json
import re

import pytest
from recordings import LASTING

from dflash.cli.main import run
from dflash.draftfile.errors import PartMissing
from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.run import open_run
from dflash.engine.loop import Engine
from dflash.engine.shard import BadShard, Shard

LINES = [
    {"prompt": "one"},
    {"turns": ["two", "and then?"]},
    {"prompt": "one", "id": "again"},
    {"prompt": "one"},
    {"prompt": "x", "seed": 3},
    {"turns": ["three", "why?", "so?"], "id": "talk"},
    {"prompt": "one", "temperature": 0.4},
]


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, stdout, stderr) of `record` on the lines."""
    (in_folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def call(*words, prompts=("--prompts", "p.jsonl"), command="record"):
        base = ["--target", str(tiny_folder), "--max-new-tokens", "8", "--drafter", "ngram", *prompts]
        code = run([command, *(base if command == "record" else []), *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def lasting(out):
    """The lines of `cat`, without what is volatile."""
    rows = [json.loads(line) for line in out.splitlines()]
    return [{name: row[name] for name in LASTING if name in row} for row in rows]


@pytest.mark.parametrize(("temperature", "count"), [(0, 2), (0.8, 3), (0.8, 9)])
def test_joined_they_are_the_recording_of_the_whole_list(dflash, in_folder, temperature, count):
    words = ("--temperature", temperature)
    assert dflash("-o", "whole.parquet", *words)[0] == 0
    # in any order, some of them with nothing to do
    for index in reversed(range(count)):
        assert dflash("-o", "parts", "--shard", f"{index}/{count}", *words)[0] == 0
    joined = lasting(dflash("parts", "--format", "ndjson", command="cat")[1])
    assert joined == lasting(dflash("whole.parquet", "--format", "ndjson", command="cat")[1])
    found = open_run([in_folder / "parts"])
    assert [file.header.raw["shard"] for file in found.files] == [
        {"index": index, "count": count} for index in range(count)
    ]
    assert found.requests == open_draft_file(in_folder / "whole.parquet").requests
    assert dflash("parts", "--check", command="replay")[0] == 0
    assert dflash("parts", command="info")[0] == 0


def test_named_files_are_a_run_too_and_one_alone_is_not(dflash, in_folder):
    for index in range(2):
        assert dflash("-o", f"part{index}.parquet", "--shard", f"{index}/2")[0] == 0
    paths = [in_folder / f"part{index}.parquet" for index in range(2)]
    assert open_run(paths).requests == len(LINES) + 3
    with pytest.raises(PartMissing):
        open_run(paths[:1])
    assert dflash(paths[1], "--format", "ndjson", command="cat")[0] == 0


@pytest.mark.parametrize("change", [("--seed", "1"), ("--length", "2"), ("--max-new-tokens", "9")])
def test_other_settings_or_prompts_are_another_run(dflash, in_folder, change):
    dflash("-o", "a.parquet", "--shard", "0/2")
    dflash("-o", "b.parquet", "--shard", "0/2", *change)
    dflash("-o", "c.parquet", "--shard", "0/2", prompts=("only this", "and that"))
    dflash("-o", "d.parquet", "--shard", "0/2")
    a, b, c, d = (open_draft_file(in_folder / f"{name}.parquet").run_id for name in "abcd")
    assert a == d
    assert len({a, b, c}) == 3


@pytest.mark.parametrize("text", ["2/2", "3/2", "-1/2", "0/0", "1", "a/b", "0/2/3", " 0/2", "0/99999", "٠/2"])
def test_a_shard_that_is_none_is_refused(dflash, in_folder, text):
    with pytest.raises(BadShard, match=re.escape(repr(text))):
        Shard.parse(text)
    code, _, err = dflash("-o", "run.parquet", f"--shard={text}")
    assert (code, "--shard I/N" in err) == (2, True)
    assert [path.name for path in in_folder.iterdir()] == ["p.jsonl"]


REFUSED = {
    "no output": (["--shard", "0/2"], "a folder for all shards"),
    "a stream": (["--shard", "0/2", "-o", "x"], "a stream arrives at one of them"),
    "a control that learns from all": (
        ["--shard", "0/2", "-o", "x", "--policy", "match:control=window,control.scope=stream"],
        "control.scope=request",
    ),
    "a folder without a shard": (["-o", "."], "found the folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_shards_cannot_do_is_refused(dflash, in_folder, case):
    words, told = REFUSED[case]
    prompts = ("--prompts", "-") if case == "a stream" else ("--prompts", "p.jsonl")
    code, _, err = dflash(*words, prompts=prompts)
    assert (code, told in err) == (2, True)
    assert [path.name for path in in_folder.iterdir()] == ["p.jsonl"]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), MemoryError()], ids=["interrupted", "broken"])
def test_a_shard_that_breaks_off_twice_loses_nothing_of_either(dflash, in_folder, monkeypatch, end):
    words = ("-o", "parts", "--shard", "1/2")

    def broken(after, *more):
        left, method = [after], Engine._prefill

        def failing(self, *given):
            left[0] -= 1
            if left[0] < 0:
                raise end
            return method(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "_prefill", failing)
            return dflash(*words, *more)[0]

    assert broken(2) in (2, 130)
    assert broken(1, "--resume") in (2, 130)
    code, out, _ = dflash(*words, "--resume", "--json")
    assert (code, json.loads(out)["kept"]) == (0, 3)
    assert dflash("-o", "whole", "--shard", "1/2")[0] == 0
    found, whole = (open_draft_file(in_folder / name / "shard-1-of-2.parquet") for name in ("parts", "whole"))
    assert found.content_digest == whole.content_digest
    assert found.run_id == whole.run_id
