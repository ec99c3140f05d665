"""`record --metrics`: Prometheus text that a strict parser takes, and whose numbers are the file's."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest
from recordings import requests_of

from dflash.cli.main import run
from dflash.engine import metrics
from dflash.engine.metrics import Counts, Metrics
from dflash.engine.recorder.recorder import Pressure

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
SUFFIXES = {"counter": {""}, "gauge": {""}, "histogram": {"_bucket", "_sum", "_count"}}


def parse(text):
    """Samples by family, by (suffix, labels), after the rules of exposition format 0.0.4."""
    assert text.endswith("\n")
    kinds, found = {}, defaultdict(dict)
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family, told = line.removeprefix("# HELP ").split(" ", 1)
            assert family not in kinds
            assert told
            kinds[family] = None
        elif line.startswith("# TYPE "):
            family, kind = line.removeprefix("# TYPE ").split(" ")
            assert kinds[family] is None
            assert list(kinds)[-1] == family
            kinds[family] = kind
            assert kind in SUFFIXES
            assert (kind == "counter") == family.endswith("_total")
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            family = list(kinds)[-1]
            assert name.removeprefix(family) in SUFFIXES[kinds[family]], line
            pairs = LABEL.findall(labels or "")
            assert ",".join(f'{key}="{text}"' for key, text in pairs) == (labels or "")
            key = (name.removeprefix(family), tuple(pairs))
            assert key not in found[family]
            found[family][key] = float(value)
    assert None not in kinds.values()
    return found


def value(found, name, suffix="", **labels):
    return found[f"dflash_{name}"][suffix, tuple(labels.items())]


@pytest.fixture
def dflash(tiny_folder, in_folder, capfd):
    """dflash(*words) -> (exit code, stderr) of `record` on two prompts."""

    def call(*words):
        base = ["record", "one two one two", "three", "--target", str(tiny_folder), "--max-new-tokens", "30"]
        return run([*base, *map(str, words)]), capfd.readouterr().err

    return call


@pytest.mark.parametrize("words", [["--dense", "--lanes", 2], ["--length", 0], ["--drafter", "none"]])
def test_the_numbers_are_the_files(dflash, in_folder, words):
    assert dflash("-o", "run.parquet", "--metrics", "run.prom", *words)[0] == 0
    found = parse((in_folder / "run.prom").read_text())
    rows = [row for request in requests_of(in_folder / "run.parquet").values() for row in request]
    live = [row for row in rows if row["kind"] == 0]
    accepted = [len(row["accepted_nodes"]) for row in live]
    assert value(found, "rounds_total") == len(live)
    assert value(found, "tokens_total") == sum(row["emitted"] or 0 for row in rows) == 60
    assert value(found, "prompt_tokens_total") == sum(len(row["prompt_tokens"] or ()) for row in rows)
    assert value(found, "dense_rows_total") == sum(row["kind"] == 1 for row in rows)
    assert value(found, "drafted_nodes_total") == sum(len(row["node_token"]) for row in live)
    assert value(found, "accepted_nodes_total") == sum(accepted)
    assert value(found, "tau") == pytest.approx(1 + sum(accepted) / len(live))
    assert value(found, "requests_total", finish="length") == 2
    assert value(found, "requests_open") == value(found, "wasted_rounds_total") == 0
    depths = [row["draft_length"] for row in live]
    for position in range(1, max(depths) + 1):
        told = str(position)
        assert value(found, "position_drafted_total", position=told) == sum(x >= position for x in depths)
        assert value(found, "position_accepted_total", position=told) == sum(x >= position for x in accepted)
    for name, values in (("draft_length_nodes", depths), ("branches", [row["branches"] for row in live])):
        assert value(found, name, "_sum") == sum(values)
        assert value(found, name, "_count") == len(live) == value(found, name, "_bucket", le="+Inf")
        for bound in set(values):
            assert value(found, name, "_bucket", le=str(bound)) == sum(x <= bound for x in values)
    assert value(found, "recorder_blocked_seconds_total") >= 0
    assert not list(in_folder.glob("*.partial"))


def test_every_file_that_is_ever_there_is_whole(tmp_path):
    """Before the first round, and after each."""

    class NoSink:
        def row(self, lane, row):
            pass

    seen, time = [], [0.0]
    sink = Metrics(
        NoSink(), tmp_path / "m.prom", lambda: Pressure(1.5, 2, 3, 4), lambda: 7, clock=lambda: time[0]
    )
    sink.labels = {"shard": '0/2 "\\\n'}
    sink.begin()
    seen.append((tmp_path / "m.prom").read_text())
    row = {
        "kind": 0,
        "emitted": 2,
        "node_token": [1, 2],
        "draft_length": 2,
        "accepted_nodes": [0],
        "branches": 1,
    }
    for step in range(5):
        time[0] += metrics.SECONDS / 2
        sink.row(None, row | {"step": step // 2, "draft_us": 10.0, "verify_us": None})
        seen.append((tmp_path / "m.prom").read_text())
    found = [parse(text) for text in seen]
    shard = {"shard": r"0/2 \"\\\n"}
    assert [value(one, "rounds_total", **shard) for one in found] == [0, 0, 2, 2, 4, 4]
    assert value(found[-1], "draft_seconds_total", **shard) == pytest.approx(2e-5)
    assert value(found[0], "wasted_rounds_total", **shard) == 7
    assert value(found[0], "recorder_queue_rows", **shard) == 2
    assert "dflash_tau" not in found[0]


def test_what_is_no_regular_file_is_never_replaced_and_links_stay(dflash, in_folder):
    os.mkfifo("pipe")
    code, err = dflash("-o", "run.parquet", "--metrics", "pipe")
    assert (code, "no regular file" in err) == (2, True)
    assert Path("pipe").is_fifo()
    Path("link").symlink_to("real.prom")
    assert dflash("-o", "run.parquet", "--metrics", "link")[0] == 0
    assert Path("link").is_symlink()
    assert value(parse(Path("real.prom").read_text()), "requests_open") == 0


def test_a_place_that_cannot_be_written_is_refused_and_one_that_fills_up_is_told(
    dflash, in_folder, monkeypatch
):
    code, err = dflash("-o", "run.parquet", "--metrics", "none/run.prom")
    assert (code, "--metrics" in err) == (2, True)
    assert not list(in_folder.iterdir())
    add = Counts.add

    def failing(self, row):
        (in_folder / "m" / "run.prom").unlink(missing_ok=True)
        (in_folder / "m").rmdir() if (in_folder / "m").exists() else None
        add(self, row)

    (in_folder / "m").mkdir()
    monkeypatch.setattr(Counts, "add", failing)
    code, err = dflash("-o", "run.parquet", "--metrics", "m/run.prom")
    assert (code, "the last metrics could not be written: No such file" in err) == (0, True)
    assert run(["doctor", "run.parquet"]) == 0
