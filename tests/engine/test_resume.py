"""`record --resume`: whatever cut a recording short, going on gives the file of an undisturbed run."""

from __future__ import annotations

import json

import pytest
from recordings import requests_of

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file
from dflash.engine.loop import Engine
from dflash.target.model import TrunkModel

LINES = [
    {"prompt": "one"},
    {"turns": ["two", "and then?", "and now?"]},
    {"prompt": "one", "id": "again"},
    {"turns": ["three", "why?"], "stop": ["e"], "max_new_tokens": 9},
    {"prompt": "four", "temperature": 0.7},
]


@pytest.fixture
def record_lines(tiny_folder, in_folder, capfd):
    """record_lines(output, *words, lines=…) -> (exit code, JSON document or None, stderr)."""

    def call(output, *words, lines=LINES):
        (in_folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = ["record", "--target", str(tiny_folder), "--prompts", "p.jsonl", "-o", output, "--json"]
        code = run([*command, "--max-new-tokens", "6", *map(str, words)])
        out, err = capfd.readouterr()
        out = out[out.find("{") :] if "{" in out else ""
        return code, json.loads(out) if out else None, err

    return call


@pytest.fixture
def cut(monkeypatch, record_lines):
    """cut(error, after, output, *words): a recording whose target fails after so many forwards."""

    def call(error, after, output, *words, lines=LINES):
        left = [after]

        def counted(method):
            def failing(self, *arguments):
                left[0] -= 1
                if left[0] < 0:
                    raise error
                return method(self, *arguments)

            return failing

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "_prefill", counted(Engine._prefill))
            patch.setattr(Engine, "round", counted(Engine.round))
            return record_lines(output, *words, lines=lines)

    return call


def digest(path):
    return open_draft_file(path).content_digest


@pytest.mark.parametrize("words", [[], ["--dense", "--no-text"]], ids=["live", "dense"])
@pytest.mark.parametrize("after", [4, 13, 30])
def test_a_broken_run_goes_on_to_the_same_file(record_lines, cut, in_folder, words, after):
    code, whole, _ = record_lines("whole.parquet", *words)
    assert (code, whole["kept"]) == (0, 0)
    assert cut(MemoryError(), after, "run.parquet", *words)[0] == 2
    code, document, _ = record_lines("run.parquet", *words, "--resume")
    assert code == 0
    assert document["kept"] > 0 or after == 4
    assert (document["unasked"], document["run_status"]) == (0, "finished")
    assert document["content_digest"] == whole["content_digest"]
    for name in ("requests", "rounds", "tokens", "tau", "finish"):
        assert document[name] == whole[name]
    assert list(requests_of(in_folder / "run.parquet")) == list(requests_of(in_folder / "whole.parquet"))
    assert not list(in_folder.glob("*.journal*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["interrupted", "recovered"])
def test_a_published_part_goes_on_to_the_same_file(record_lines, cut, in_folder, error):
    record_lines("whole.parquet")
    code, _, _ = cut(error, 20, "run.parquet")
    if code == 2:
        assert run(["recover", "run.journal"]) == 0
    assert open_draft_file(in_folder / "run.parquet").run_status in ("interrupted", "recovered")
    # and it breaks off once more on the way
    assert cut(MemoryError(), 6, "run.parquet", "--resume")[0] == 2
    assert (in_folder / "run.journal").exists()
    code, document, _ = record_lines("run.parquet", "--resume")
    assert code == 0
    assert document["kept"] >= 3
    assert digest(in_folder / "run.parquet") == digest(in_folder / "whole.parquet")


def test_an_interruption_while_going_on_loses_nothing_that_was_kept(record_lines, cut, in_folder):
    record_lines("whole.parquet")
    cut(MemoryError(), 30, "run.parquet")
    before = cut(KeyboardInterrupt(), 0, "run.parquet", "--resume")[1]
    assert before["run_status"] == "interrupted"
    code, document, _ = record_lines("run.parquet", "--resume")
    assert (code, document["kept"]) == (0, before["kept"])
    assert digest(in_folder / "run.parquet") == digest(in_folder / "whole.parquet")


def test_a_finished_run_is_kept_whole_and_an_absent_one_is_run(record_lines, in_folder, monkeypatch):
    code, first, _ = record_lines("run.parquet", "--resume")
    assert (code, first["kept"]) == (0, 0)
    monkeypatch.setattr(TrunkModel, "append", None)
    monkeypatch.setattr("dflash.target.load.self_test", lambda *given: 0.0)
    code, again, err = record_lines("run.parquet", "--resume")
    assert code == 0, err
    assert again["kept"] == again["requests"] == first["requests"]
    assert again["content_digest"] == first["content_digest"]


def test_other_prompts_keep_what_was_recorded_under_a_free_name(record_lines, cut, in_folder):
    old = [{"prompt": "alpha"}, {"prompt": "beta"}, {"prompt": "gamma"}, {"prompt": "delta"}]
    cut(MemoryError(), 20, "run.parquet", lines=old)
    new = [{"prompt": "gamma"}, {"prompt": "new"}, {"prompt": "alpha"}]
    code, document, _ = record_lines("run.parquet", "--resume", lines=new)
    record_lines("whole.parquet", lines=new)
    whole, found = requests_of(in_folder / "whole.parquet"), requests_of(in_folder / "run.parquet")
    assert code == 0
    assert list(found) == [*whole, "1+"]
    assert found["1+"][0]["prompt_text"].count("beta") == 1
    assert {name: found[name] for name in whole} == whole
    assert (document["kept"], document["unasked"], document["changed"]) == (3, 1, {})


def test_a_second_break_after_prompts_moved_loses_nothing_either(record_lines, cut, in_folder):
    old = [{"prompt": "alpha"}, {"prompt": "beta"}, {"prompt": "gamma"}]
    new = [{"prompt": "fresh"}, *old, {"prompt": "more"}]
    cut(MemoryError(), 15, "run.parquet", lines=old)
    assert cut(MemoryError(), 10, "run.parquet", "--resume", lines=new)[0] == 2
    assert run(["recover", "run.journal", "-o", "saved.parquet"]) == 0
    prompts = [rows[0]["prompt_text"] for rows in requests_of(in_folder / "saved.parquet").values()]
    assert sum("fresh" in prompt for prompt in prompts) == sum("alpha" in prompt for prompt in prompts) == 1
    (in_folder / "saved.parquet").rename(in_folder / "run.parquet")
    assert record_lines("run.parquet", "--resume", lines=new)[1]["unasked"] == 0
    record_lines("whole.parquet", lines=new)
    assert digest(in_folder / "run.parquet") == digest(in_folder / "whole.parquet")


def test_other_settings_of_a_request_run_it_again(record_lines, cut, in_folder):
    cut(MemoryError(), 20, "run.parquet", lines=[{"prompt": "alpha"}, {"prompt": "beta"}, {"prompt": "c"}])
    lines = [{"prompt": "alpha", "max_new_tokens": 3}, {"prompt": "beta"}, {"prompt": "c"}]
    _, document, _ = record_lines("run.parquet", "--resume", lines=lines)
    assert (document["kept"], document["unasked"]) == (3, 1)
    assert document["changed"] == {"max_new_tokens": "6, now 3"}
    found = requests_of(in_folder / "run.parquet")
    assert list(found) == ["0", "1", "2", "0+"]
    assert sum(row["emitted"] for row in found["0"]) == 3


def test_other_settings_of_the_run_are_refused_and_each_is_named(record_lines, cut, in_folder):
    cut(MemoryError(), 20, "run.parquet")
    before = (in_folder / "run.journal").read_bytes()
    words = ["--seed", 3, "--store-topk", 8, "--drafter", "none", "--temperature", 0.5, "--features", "none"]
    code, _, err = record_lines("run.parquet", "--resume", *words)
    assert code == 2
    for name in ("seed", "store_topk", "drafters.0.family", "sampling.temperature", "features.mode"):
        assert f"{name} (expected " in err
    assert "created_at" not in err
    assert (in_folder / "run.journal").read_bytes() == before
    assert [path.name for path in in_folder.glob("run*")] == ["run.journal"]


def test_versions_machine_and_time_may_differ(record_lines, cut, in_folder, monkeypatch):
    record_lines("whole.parquet")
    cut(MemoryError(), 20, "run.parquet")
    monkeypatch.setattr("dflash.engine.header.__version__", "99.0")
    monkeypatch.setattr("dflash.engine.header._installed", lambda package: "98.0")
    monkeypatch.setattr("dflash.engine.header.git_facts", lambda: {"commit": "0123456789", "dirty": False})
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert record_lines("run.parquet", "--resume")[0] == 0
    assert digest(in_folder / "run.parquet") == digest(in_folder / "whole.parquet")


def test_what_makes_no_sense_is_refused(record_lines, tiny_folder, in_folder, capfd):
    assert record_lines("run.parquet", "--resume", "--overwrite")[0] == 2
    assert run(["record", "--target", str(tiny_folder), "hello", "--resume"]) == 2
    assert "-o" in capfd.readouterr().err
    (in_folder / "run.parquet").write_text("mine")
    code, _, err = record_lines("run.parquet", "--resume")
    assert code == 2
    assert "not a Parquet file" in err
    assert (in_folder / "run.parquet").read_text() == "mine"


def test_a_journal_that_is_empty_is_none(record_lines, in_folder):
    (in_folder / "run.journal").touch()
    assert record_lines("run.parquet", "--resume")[1]["kept"] == 0
    assert not (in_folder / "run.journal").exists()


@pytest.mark.parametrize("stop", [[], ["zzzz"]])
def test_later_turns_see_the_answers_before_them(record_lines, in_folder, stop):
    record_lines("run.parquet", lines=[{"turns": ["two", "and then?"], "stop": stop}])
    first, second = requests_of(in_folder / "run.parquet").values()
    answer = second[0]["prompt_text"].removeprefix(first[0]["prompt_text"]).partition("<|im_end|>")[0]
    committed = sum(row["emitted"] for row in first)
    assert len(answer.encode()) == committed == 6
