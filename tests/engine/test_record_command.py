"""`dflash record` from outside: what it prints, leaves behind and refuses."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import zstandard
from tiny_model import write_tiny

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, stdout, stderr) of `record` with the tiny target."""

    def call(*words, target=tiny_folder, command="record"):
        options = ["--target", str(target)] if command == "record" else []
        code = run([command, *options, *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def piped(data):
    return io.TextIOWrapper(io.BytesIO(data))


def nothing_left(folder):
    return [
        path.name for path in folder.iterdir() if path.suffix in (".parquet", ".partial", ".lock", ".journal")
    ]


def test_an_answer_is_streamed_and_the_closing_lines_can_be_pasted(dflash, in_folder):
    code, out, err = dflash("hello", "-o", "run.parquet", "--max-new-tokens", 12)
    assert code == 0
    rows = open_draft_file(in_folder / "run.parquet")
    assert f"digest {rows.content_digest[:12]}" in err
    assert "12 tokens, tau" in err
    assert out.strip()
    assert "replay: dflash replay run.parquet" in err
    assert dflash("run.parquet", "--check", command="replay")[0] == 0
    assert dflash("run.parquet", command="info")[0] == 0


def test_the_default_name_is_the_time(dflash, in_folder):
    assert dflash("hello", "--max-new-tokens", 3)[0] == 0
    (path,) = in_folder.glob("dflash-*.parquet")
    assert len(path.stem) == len("dflash-20261129-120000")


def test_json_is_one_document_and_the_answer_is_not_mixed_in(dflash):
    code, out, _ = dflash("hello", "--max-new-tokens", 5, "--json", "-o", "a.parquet")
    assert code == 0
    schema = json.loads((resources.files("dflash.schemas") / "record_v1.schema.json").read_text())
    jsonschema.validate(json.loads(out), schema)


LINES = [
    {"prompt": "one", "id": "a"},
    {"text": "two", "temperature": 0.5},
    {"turns": ["three", "and then?"], "stop": ["zz"]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "four"}]},
    {
        "conversations": [
            {"from": "human", "value": "x"},
            {"from": "gpt", "value": "y"},
            {"from": "human", "value": "z"},
        ]
    },
]


@pytest.mark.parametrize("wrapping", ["plain", "crlf", "bom", "gz", "zst", "stdin"])
def test_every_form_of_prompt_in_every_wrapping_gives_the_same_run(dflash, in_folder, monkeypatch, wrapping):
    text = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    data = {
        "crlf": text.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + text,
        "gz": gzip.compress(text),
        "zst": zstandard.compress(text),
    }.get(wrapping, text)
    name = {"gz": "p.jsonl.gz", "zst": "p.jsonl.zst"}.get(wrapping, "p.jsonl")
    (in_folder / name).write_bytes(data)
    source = name
    if wrapping == "stdin":
        monkeypatch.setattr(sys, "stdin", piped((in_folder / name).read_bytes()))
        source = "-"
    assert dflash("--prompts", source, "-o", "run.parquet", "--max-new-tokens", 6, "--no-host")[0] == 0
    file = open_draft_file(in_folder / "run.parquet")
    rows = [row for table in file.tables() for row in table.to_pylist() if row["kind"] == 2]
    assert [row["request_id"] for row in rows] == ["a", "1", "2/0", "2/1", "3", "4"]
    # one BOS, written by the template
    assert all(row["prompt_tokens"].count(256) == 1 for row in rows)
    first_answer = rows[3]["prompt_text"].split("three<|im_end|>")[1].split("<|im_end|>")[0]
    assert first_answer.startswith("\n<|im_start|>assistant\n")
    assert len(first_answer) > len("\n<|im_start|>assistant\n")


BAD = {
    "empty prompt": (["  "], "empty prompt"),
    "unknown policy": (["x", "--policy", "mtach"], "match"),
    "unknown parameter": (["x", "--policy", "match:lenght=3"], "length"),
    "policy beyond the shape": (["x", "--policy", "match:length=9"], "raise --length"),
    "branches for a rule of chains": (
        ["x", "--policy", "block", "--temperature", "0.8", "--drafter", "self", "--branches", "2"],
        "expected --branches 1",
    ),
    "a union for a rule of chains": (
        ["x", "--policy", "block", "--temperature", "0.8", "--drafter", "self+ngram"],
        "expected --branches 1 and one drafter",
    ),
    "groups of one lane": (["x", "--overlap", "groups"], "--lanes 2 or more"),
    "unknown drafter": (["x", "--drafter", "ngrm"], "ngram"),
    "nan": (["x", "--temperature", "nan"], "finite"),
    "infinite": (["x", "--temperature", "inf"], "finite"),
    "negative": (["x", "--temperature", "-1"], ""),
    "zero tokens": (["x", "--max-new-tokens", "0"], ""),
    "zero top-p": (["x", "--top-p", "0"], ""),
    "empty stop": (["x", "--stop", ""], "--stop"),
    "no such prompt file": (["--prompts", "none.jsonl"], "none.jsonl"),
    "words and a file": (["x", "--prompts", "none.jsonl"], "both"),
    "bad pair": (["x", "-P", "t"], "KEY=VALUE"),
    "stop that is no text": (["x", "--stop", "\udcff"], "UTF-8"),
    "system that is no text": (["x", "--system", "\udcff"], "UTF-8"),
    "raw with a system message": (["x", "--raw", "--system", "s"], "--raw"),
    "a drafter that nobody asks": (["x", "--drafter", "bogus", "--length", "0"], "bogus"),
    "one drafter twice": (["x", "--drafter", "ngram+ngram"], "twice"),
    "output to a pipe": (["x", "-o", "-"], "pipe"),
    "a draft temperature near zero": (["x", "--draft-temperature", "1e-300"], "--draft-temperature"),
    "a device without memory": (["x", "--device", "meta"], "meta"),
    "no such device": (["x", "--device", "warp"], "warp"),
    "no such folder": (["x", "-o", "none/run.parquet"], "none"),
    "too long": (["long " * 400], "context window"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_is_told_and_leaves_nothing(dflash, in_folder, case):
    words, told = BAD[case]
    code, out, err = dflash(*words)
    assert code == 2
    assert err.startswith("error: ")
    assert told in err
    assert "Traceback" not in err
    assert not out
    assert not nothing_left(in_folder)


def test_every_bad_line_of_a_file_is_named_before_anything_is_decoded(dflash, in_folder):
    (in_folder / "p.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "b"\n\xff\xfe\n{"prompt": ""}\n')
    code, _, err = dflash("--prompts", "p.jsonl", "-o", "run.parquet")
    assert code == 2
    assert all(f"p.jsonl:{line}" in err for line in (2, 3, 4))
    assert not nothing_left(in_folder)
    code, _, err = dflash("--prompts", "p.jsonl", "-o", "run.parquet", "--skip-bad", "--max-new-tokens", 3)
    assert code == 0
    assert open_draft_file(in_folder / "run.parquet").requests == 1


def test_a_bad_line_of_a_stream_is_skipped_and_counts_as_lost(dflash, in_folder, monkeypatch):
    (in_folder / "p").write_text('{"prompt": "a"}\n{"prompt": \n{"prompt": "c"}\n')
    monkeypatch.setattr(sys, "stdin", piped((in_folder / "p").read_bytes()))
    code, _, err = dflash("--prompts", "-", "-o", "run.parquet", "--max-new-tokens", 3)
    assert code == 3
    assert "stdin:2" in err
    assert open_draft_file(in_folder / "run.parquet").requests == 2


@pytest.mark.parametrize(("words", "branches"), [([], 2), (["--policy", "block"], 1), (["--tree", "3,2"], 6)])
def test_branches_are_as_many_as_the_rule_can_judge(dflash, in_folder, words, branches):
    shared = ["x", "--temperature", "0.8", "--drafter", "self", "--max-new-tokens", 3, "-o", "run.parquet"]
    assert dflash(*shared, *words)[0] == 0
    assert open_draft_file(in_folder / "run.parquet").header.shape["branches"] == branches


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_stream_is_refused_before_a_model_is_loaded(dflash, in_folder, monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", piped(text.encode()))
    code, _, err = dflash("--prompts", "-", "-o", "run.parquet", target="./nothing")
    assert (code, "at least one prompt" in err) == (2, True)
    assert not nothing_left(in_folder)


def test_more_top_logits_than_the_vocabulary_has_are_all_of_them(dflash, in_folder):
    words = ["--store-topk", 1024, "--drafter", "self", "--temperature", 0.8, "--max-new-tokens", 6]
    assert dflash("x", "-o", "run.parquet", *words)[0] == 0
    file = open_draft_file(in_folder / "run.parquet")
    assert file.header.store_topk == file.header.tokenizer["vocab_size"]
    assert dflash("run.parquet", "--check", command="replay")[0] == 0


def test_check_reads_every_column_a_flipped_bit_anywhere_is_found(dflash, in_folder):
    assert dflash("x", "-o", "run.parquet", "--max-new-tokens", 6)[0] == 0
    whole = (in_folder / "run.parquet").read_bytes()
    for place in range(4, len(whole) - 5000, 1501):
        changed = whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]
        (in_folder / "run.parquet").write_bytes(changed)
        assert dflash("run.parquet", "--check", command="replay")[0] == 2, place


def test_an_existing_output_stays_and_overwrite_replaces_it(dflash, in_folder):
    (in_folder / "run.parquet").write_text("mine")
    code, _, err = dflash("x", "-o", "run.parquet")
    assert code == 2
    assert "--overwrite" in err
    assert (in_folder / "run.parquet").read_text() == "mine"
    assert dflash("x", "-o", "run.parquet", "--overwrite", "--max-new-tokens", 3)[0] == 0
    assert open_draft_file(in_folder / "run.parquet").run_status == "finished"


def test_models_that_cannot_be_targets_are_refused_with_the_reason(dflash, in_folder):
    code, _, err = dflash("x", target="./nothing")
    assert code == 2
    assert "./nothing" in err
    code, _, err = dflash("x", target="no/such-model-anywhere")
    assert code == 2
    assert "no/such-model-anywhere" in err
    (in_folder / "mamba").mkdir()
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 8, "state_size": 4}
    (in_folder / "mamba" / "config.json").write_text(json.dumps(config))
    code, _, err = dflash("x", target=in_folder / "mamba")
    assert code == 2
    assert "cannot branch" in err
    (in_folder / "t5").mkdir()
    (in_folder / "t5" / "config.json").write_text(
        json.dumps({"model_type": "t5", "is_encoder_decoder": True})
    )
    code, _, err = dflash("x", target=in_folder / "t5")
    assert code == 2
    assert "encoder-decoder" in err
    assert not nothing_left(in_folder)


def test_conversations_need_a_chat_template_and_text_does_not(dflash, in_folder):
    folder = write_tiny(in_folder / "bare", template=False)
    (in_folder / "p.jsonl").write_text('{"turns": ["a", "b"]}\n')
    code, _, err = dflash("--prompts", "p.jsonl", "-o", "run.parquet", target=folder)
    assert code == 2
    assert "chat template" in err
    assert not nothing_left(in_folder)
    assert dflash("plain", "-o", "run.parquet", "--max-new-tokens", 3, target=folder)[0] == 0
    rows = open_draft_file(in_folder / "run.parquet").tables()
    assert next(iter(rows)).to_pylist()[0]["prompt_text"] == "plain"


def test_a_prompt_that_outgrows_the_window_in_a_later_turn_loses_only_that_turn(dflash, in_folder, tmp_path):
    folder = write_tiny(in_folder / "narrow", window=200)
    (in_folder / "p.jsonl").write_text(json.dumps({"turns": ["a", "b" * 300]}) + '\n{"prompt": "next"}\n')
    code, _, err = dflash("--prompts", "p.jsonl", "-o", "r.parquet", "--max-new-tokens", 4, target=folder)
    assert code == 3
    assert "context window" in err
    file = open_draft_file(in_folder / "r.parquet")
    rows = [row for table in file.tables() for row in table.to_pylist() if row["kind"] == 2]
    assert [row["request_id"] for row in rows] == ["0/0", "1"]


@pytest.mark.parametrize("form", [[], ["--lanes", "2"], ["--json-lines"], ["--json"]])
def test_a_recording_goes_on_where_stdout_takes_no_answers(tiny_folder, in_folder, form):
    """As they are written, whole, by the line, or at the end: data was lost, but none of the recording."""
    words = ["--target", str(tiny_folder), "--drafter", "none", "--max-new-tokens", "9", "one", "two", *form]
    command = [sys.executable, "-m", "dflash", "record", *words, "-o", "run.parquet"]
    with (Path("/dev") / "full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert [line for line in done.stderr.splitlines() if "warning" in line] == [
        "warning: stdout takes no more (No space left on device): the recording goes on without it"
    ]
    file = open_draft_file(in_folder / "run.parquet")
    assert (file.run_status, file.requests) == ("finished", 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_keep_what_was_recorded_and_a_closed_pipe_finishes_the_file(tiny_folder, in_folder, number):
    base = [sys.executable, "-m", "dflash", "record", "--target", str(tiny_folder), "--drafter", "none"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    words = [*base, "--max-new-tokens", "450", "--length", "0", "tell me"]
    process = subprocess.Popen(
        [*words, "-o", "cut.parquet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    with process:
        process.stdout.read(20)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    file = open_draft_file(in_folder / "cut.parquet")
    last = [row for table in file.tables() for row in table.to_pylist()][-1]
    assert (file.run_status, last["truncated_by"]) == ("interrupted", "interrupted")

    process = subprocess.Popen(
        [*words, "-o", "pipe.parquet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    with process:
        process.stdout.read(20)
        process.stdout.close()
        process.stderr.read()
    assert process.returncode == 141
    assert open_draft_file(in_folder / "pipe.parquet").run_status == "interrupted"
    deadline = time.monotonic() + 60
    while list(in_folder.glob("*.partial")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(in_folder.glob("*.partial"))
