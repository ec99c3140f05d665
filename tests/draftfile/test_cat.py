"""`dflash cat`: trees with the accepted path marked, and lines that other programs read back."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sample_drafts import LIVE, header, tables, write
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dflash.cli.main import run
from dflash.target.tokenizer_digest import tokenizer_digest


@pytest.fixture
def parts() -> list[pa.Table]:
    return tables(3, 2, rounds=4, dense=1)


@pytest.fixture
def path(tmp_path: Path, parts: list[pa.Table]) -> Path:
    write(tmp_path / "run.parquet", parts)
    return tmp_path / "run.parquet"


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["cat", *words]) == 0
    return capsys.readouterr().out


def finite(value: Any) -> Any:
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def test_ndjson_holds_every_cell(
    path: Path, parts: list[pa.Table], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in output(capsys, str(path), "--format", "ndjson").splitlines()]
    rows = pa.concat_tables(parts).to_pylist()
    for line, row in zip(lines, rows, strict=True):
        started = row.pop("started_at")
        assert line.pop("started_at") == (None if started is None else "2026-11-29T12:00:00Z")
        assert line == {name: finite(value) for name, value in row.items()}


def test_a_request_that_is_not_there_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cat", str(path), "--request", "no such request"]) == 2
    assert "'no such request'" in capsys.readouterr().err


def test_csv_holds_every_row(path: Path, parts: list[pa.Table], capsys: pytest.CaptureFixture[str]) -> None:
    found = list(csv.DictReader(io.StringIO(output(capsys, str(path), "--format", "csv"))))
    rows = pa.concat_tables(parts).to_pylist()
    assert [row["request_id"] for row in found] == [row["request_id"] for row in rows]
    assert [json.loads(row["node_token"]) for row in found] == [row["node_token"] for row in rows]
    assert [row["bonus_token"] for row in found] == [
        "" if row["bonus_token"] is None else str(row["bonus_token"]) for row in rows
    ]


def test_rows_are_chosen(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(path), "--format", "ndjson", "--request", "request-1", "--kind", "live", "-n", "3"]
    found = [json.loads(line) for line in output(capsys, *words).splitlines()]
    assert [(row["request_id"], row["kind"], row["round"]) for row in found] == [
        ("request-1", LIVE, n) for n in range(3)
    ]


def test_text_draws_every_node_and_marks_the_accepted(
    path: Path, parts: list[pa.Table], capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, str(path))
    rows = pa.concat_tables(parts).to_pylist()
    lines = [line for line in text.splitlines() if "── " in line]
    assert len(lines) == sum(len(row["node_token"]) for row in rows)
    assert sum("── * " in line for line in lines) == sum(len(row["accepted_nodes"] or []) for row in rows)
    for row in rows:
        if row["kind"] == LIVE:
            assert f"round {row['round']} at {row['anchor_position']}, anchor {row['anchor_token']}: " in text


def test_tokens_are_shown_as_text(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {f"word{number}": number for number in range(header()["tokenizer"]["vocab_size"])}
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(tmp_path / "tokenizer.json"))
    text = output(capsys, str(path), "--tokenizer", str(tmp_path))
    assert '"word' in text


def test_a_tokenizer_of_the_right_size_that_is_not_the_recordings_is_used_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {f"word{number}": number for number in range(header()["tokenizer"]["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="word0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for digest, told in (("0" * 64, "digests differ"), (tokenizer_digest(tokenizer), "")):
        path = tmp_path / f"{digest[:8]}.parquet"
        settings = header(tokenizer=header()["tokenizer"] | {"digest": digest})
        write(path, tables(0, 1), settings)
        assert run(["cat", str(path), "--tokenizer", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert "word" in out
        assert told in err
        assert bool(told) == bool(err)


def test_a_tokenizer_of_another_vocabulary_is_refused(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert run(["cat", str(path), "--tokenizer", str(tmp_path)]) == 2
    assert "found 1 in" in capsys.readouterr().err
    assert run(["cat", str(path), "--tokenizer", str(tmp_path / "missing")]) == 2


def test_what_is_no_draft_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cat", str(tmp_path / "missing.parquet")]) == 2
    assert "does not exist" in capsys.readouterr().err
