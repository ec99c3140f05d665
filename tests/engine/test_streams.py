"""Prompts that arrive while others are decoded, and answers that go out as they end."""

from __future__ import annotations

import json
import os
import queue
import threading
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from recordings import requests_of

from dflash.cli import record_answers
from dflash.cli.main import run
from dflash.engine.prompts.arrivals import AHEAD, Arrivals
from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.errors import PromptError
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.policy.registry import parse_policy
from dflash.target.sampling import Sampling

LONGEST = 60


def drained(arriving):
    """Entries of a queue until a None comes."""
    return iter(lambda: arriving.get(timeout=LONGEST), None)


@pytest.fixture
def session(tiny, tmp_path):
    defaults = Defaults(Sampling(), 7, 6)
    return Session(
        tiny,
        RecordSettings(tmp_path / "run.parquet", "ngram", parse_policy("match"), defaults, 3, 2, lanes=3),
    )


def test_an_answer_comes_before_the_next_prompt_though_lanes_are_free(session, tmp_path):
    """Each prompt is sent when the answer to the one before is there; a bad line is in nobody's way."""
    arriving = queue.Queue()
    arriving.put(text_prompt("0"))
    arriving.put(PromptError("stdin:2", "odd"))
    answered = []

    def ended(lane):
        answered.append(lane.request.request_id)
        arriving.put(text_prompt(str(len(answered))) if len(answered) < 5 else None)

    arrivals = Arrivals(with_ids(drained(arriving)), session.conversation)
    found = session.record(arrivals, on_request=ended)
    assert answered == ["0", "2", "3", "4", "5"]
    assert list(requests_of(tmp_path / "run.parquet")) == answered
    assert [str(error) for error in found.lost] == ["stdin:2: odd"]


def test_few_prompts_are_read_ahead(session):
    read = []

    def endless():
        while True:
            read.append(len(read))
            yield text_prompt(str(len(read)))

    arrivals = Arrivals(with_ids(endless()), session.conversation)
    for count in range(4):
        next(arrivals)
        assert len(read) <= count + AHEAD + 3


def test_a_source_that_breaks_is_told_where_prompts_are_asked_for(session):
    def broken():
        yield text_prompt("one")
        raise OSError("gone")

    arrivals = Arrivals(with_ids(broken()), session.conversation)
    next(arrivals)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            next(arrivals)
    assert arrivals.arrived()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("place", ["stdin", "named pipe"])
def test_answers_leave_while_the_stream_is_held_open(tiny_folder, in_folder, monkeypatch, lanes, place):
    said = queue.Queue()
    monkeypatch.setattr(record_answers, "_write", said.put)
    source, sink = os.pipe()
    os.mkfifo("prompts")
    lines = []

    def person():
        with os.fdopen(sink, "w") if place == "stdin" else Path("prompts").open("w") as typing:
            for number in range(3):
                print(f"number {number}", file=typing, flush=True)
                lines.append(json.loads(said.get(timeout=LONGEST)))

    writer = threading.Thread(target=person)
    writer.start()
    words = ["--prompts", "-" if place == "stdin" else "prompts", "--json-lines", "--lanes", str(lanes)]
    words += ["--target", str(tiny_folder), "--max-new-tokens", "5", "-o", "run.parquet"]
    with os.fdopen(source) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["record", *words]) == 0
    writer.join()
    schema = json.loads((resources.files("dflash.schemas") / "record_answer_v1.schema.json").read_text())
    for line in lines:
        jsonschema.validate(line, schema)
    assert (
        [line["request"] for line in lines] == ["0", "1", "2"] == list(requests_of(in_folder / "run.parquet"))
    )


def test_answers_leave_in_the_order_of_their_end_and_lie_in_that_of_their_prompts(
    tiny_folder, in_folder, capfd
):
    wanted = [60, 4, 9, 4]
    prompts = [{"prompt": f"number {number}", "max_new_tokens": count} for number, count in enumerate(wanted)]
    (in_folder / "p.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    words = ["--prompts", "p.jsonl", "--drafter", "none", "--lanes", "2", "-o", "run.parquet"]
    assert run(["record", "--json-lines", "--target", str(tiny_folder), *words]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["request"], line["tokens"]) for line in found] == [("1", 4), ("2", 9), ("3", 4), ("0", 60)]
    assert list(requests_of(in_folder / "run.parquet")) == ["0", "1", "2", "3"]


def test_answers_of_several_lanes_do_not_run_into_each_other(tiny_folder, in_folder, capfd):
    words = ["record", "one", "two", "--target", str(tiny_folder), "--max-new-tokens", "12", "--raw"]
    alone = []
    for text in ("one", "two"):
        assert run([words[0], text, *words[3:], "-o", f"{text}.parquet"]) == 0
        alone.append(capfd.readouterr().out)
    assert run([*words, "--lanes", "2", "-o", "both.parquet"]) == 0
    assert capfd.readouterr().out in ("".join(alone), "".join(reversed(alone)))
    assert run([*words, "--json", "--json-lines"]) == 2
