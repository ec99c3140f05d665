"""`dflash doctor` tells every problem at once, and so does its exit code; `dflash recover` end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_drafts import forge, header, tables, write

from dflash.cli.main import run
from dflash.draftfile.doctor import examine
from dflash.draftfile.journal import Journal

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "run.parquet", tables(1, 6, rounds=3, dense=1), row_group_rows=1)
    return tmp_path / "run.parquet"


def kinds(path: Path, **options: bool) -> list[str]:
    return [type(error).__name__ for error in examine(path, **options)]


def document(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> Any:
    assert run([*words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    schema = json.loads((SCHEMAS / f"{words[0]}_v1.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    return found


def test_a_sound_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kinds(path, deep=True) == []
    assert document(capsys, 0, "doctor", str(path))["files"][0]["findings"] == []
    assert run(["doctor", "--deep", str(path)]) == 0
    assert "sound" in capsys.readouterr().out


def test_all_damaged_chunks_are_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    for group, column in ((0, 5), (0, 9), (3, 20)):
        data[metadata.row_group(group).column(column).data_page_offset + 9] ^= 4
    path.write_bytes(data)
    assert kinds(path) == ["BodyChanged", "PageCorrupt", "PageCorrupt", "PageCorrupt"]
    found = document(capsys, 1, "doctor", str(path))["files"][0]
    assert [finding["row_group"] for finding in found["findings"]] == [None, 0, 0, 3]
    assert run(["doctor", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [finding["message"] for finding in found["findings"]]
    assert all(line.startswith(str(path)) for line in lines)


def test_all_broken_invariants_are_named(path: Path, tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        for name, value in (("kind", 9), ("truncated_by", "magic"), ("anchor_token", -4)):
            values = table[name].to_pylist()
            values[1] = value
            position, field = table.column_names.index(name), table.schema.field(name)
            table = table.set_column(position, field, pa.array(values, field.type))
        return table

    bad = forge(path, tmp_path / "bad.parquet", table=change)
    assert kinds(bad) == ["KindUnknown", "TruncationUnknown", "TokenRange"]


def test_a_summary_that_lies(path: Path, tmp_path: Path) -> None:
    def change(pairs: dict[str, str]) -> dict[str, str]:
        summary = json.loads(pairs["dflash.summary"]) | {"rounds": 1}
        return pairs | {"dflash.summary": json.dumps(summary), "dflash.requests": "2"}

    bad = forge(path, tmp_path / "bad.parquet", pairs=change)
    assert kinds(bad) == ["RowsDisagree", "RowsDisagree"]
    assert "rounds 1" in str(examine(bad)[1])


def test_other_settings_that_lie(path: Path, tmp_path: Path) -> None:
    for told, found in (('{"requests":1,"seed":1}', ["RowsDisagree"]), (None, [])):

        def change(pairs: dict[str, str], told: str | None = told) -> dict[str, str]:
            kept = {key: value for key, value in pairs.items() if key != "dflash.other_settings"}
            return kept | ({"dflash.other_settings": told} if told else {})

        assert kinds(forge(path, tmp_path / "bad.parquet", pairs=change)) == found


def test_only_deep_finds_another_value_under_right_checksums(path: Path, tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        position, field = table.column_names.index("anchor_token"), table.schema.field("anchor_token")
        return table.set_column(position, field, pa.array([1] * table.num_rows, field.type))

    bad = forge(path, tmp_path / "bad.parquet", table=change)
    assert kinds(bad) == []
    assert kinds(bad, deep=True) == ["DigestMismatch", "DigestMismatch"]
    assert run(["doctor", "--deep", str(bad)]) == 1


def test_a_file_that_does_not_open(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parent / "text.parquet").write_text("hello, hello")
    found = document(capsys, 2, "doctor", str(path.parent))
    assert [file["opens"] for file in found["files"]] == [True, False]
    assert found["files"][1]["findings"][0]["kind"] == "NotParquet"
    assert run(["doctor", str(path.parent / "missing")]) == 2


def test_recover_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tables(3, 2)
    for name in ("whole", "torn"):
        with Journal(tmp_path / f"{name}.journal", header(), run_id="run") as journal:
            journal.append("request-0", first)
            journal.append("request-1", second.slice(0, 1))
    torn = tmp_path / "torn.journal"
    torn.write_bytes(torn.read_bytes()[:-700])
    found = document(capsys, 0, "recover", str(tmp_path / "whole.parquet"))
    assert (found["lost"], found["interrupted"]) == (False, ["request-0", "request-1"])
    assert found["dropped"] == {}
    assert document(capsys, 3, "recover", str(torn))["lost"]
    assert run(["recover", str(torn), "-o", str(tmp_path / "again.parquet")]) == 3
    out = capsys.readouterr().out
    assert "lost" in out
    assert "torn.journal was kept" in out
    with Journal(tmp_path / "later.journal", header(), run_id="run") as journal:
        journal.append("request-0", first)
    assert run(["recover", str(tmp_path / "later.journal"), "-o", str(tmp_path / "saved.parquet")]) == 0
    assert "later.journal was kept: `dflash record --resume`" in capsys.readouterr().out
    assert run(["recover", str(tmp_path / "later.journal")]) == 0
    assert "journal was removed" in capsys.readouterr().out
    assert run(["recover", str(tmp_path / "missing.journal")]) == 2


def test_paths_without_a_draft_file_cost_none_of_the_others(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, missing = path.parent / "empty", path.parent / "missing.parquet"
    empty.mkdir()
    given = [str(empty), str(path), str(missing)]
    for order in (given, given[::-1]):
        files = document(capsys, 2, "doctor", *order)["files"]
        assert [(file["path"], file["opens"]) for file in files] == [(one, one == str(path)) for one in order]
        assert [file["findings"] == [] for file in files] == [one == str(path) for one in order]
        assert run(["doctor", *order]) == 2
        told = capsys.readouterr().out.splitlines()
        assert sorted(told) == sorted(
            [f"{path}: sound", *(file["findings"][0]["message"] for file in files if file["findings"])]
        )
