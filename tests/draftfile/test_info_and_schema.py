"""`dflash info` and `dflash schema`: JSON by its schema, text for people, errors by exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_drafts import header, tables, write

from dflash.cli.main import run
from dflash.draftfile.columns import COLUMNS

SCHEMAS = Path(__file__).parents[2] / "schemas"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = json.loads((SCHEMAS / f"{words[0]}_v1.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in (0, 1):
        write(tmp_path / f"part-{part}.parquet", tables(part, 2), part=part, parts=2 if part else None)
    return tmp_path


def test_info_json_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "info", str(folder))
    assert [file["part"] for file in found["files"]] == [0, 1]
    assert [file["parts"] for file in found["files"]] == [None, 2]
    assert found["total"]["requests"] == 4
    assert found["total"]["rows"] == sum(pq.read_metadata(path).num_rows for path in folder.iterdir())
    first = found["files"][0]
    assert first["header"] == header() | {"seed": str(header()["seed"])}
    assert first["tau"] == pytest.approx(1 + sum(first["summary"]["accepted"]) / first["summary"]["rounds"])
    assert set(first["column_bytes"]) == {column.group for column in COLUMNS} - {"features"}


def test_info_of_a_run_without_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run.parquet", [])
    assert document(capsys, "info", str(tmp_path / "run.parquet"))["total"]["tau"] is None
    assert run(["info", str(tmp_path / "run.parquet")]) == 0
    assert "tau" in capsys.readouterr().out


OWN = {"temperature": 0.8, "top_k": None, "top_p": None}
INFOS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.sampled_from([7, 8]),
        "ordinal": st.integers(0, 3),
        "sampling": st.fixed_dictionaries(
            {},
            optional={
                "temperature": st.sampled_from([0.0, 0.8]),
                "top_k": st.sampled_from([0, 5]),
                "top_p": st.sampled_from([1.0, 0.9]),
            },
        ),
    },
)


@given(st.lists(INFOS, max_size=4))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_settings_of_single_requests_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], infos: list[dict[str, Any]]
) -> None:
    requests = []
    for table, info in zip(tables(1, len(infos)), infos, strict=True):
        position = table.column_names.index("request_info")
        texts = [json.dumps(info) if text is not None else None for text in table["request_info"].to_pylist()]
        field = table.schema.field(position)
        requests.append(table.set_column(position, field, pa.array(texts, field.type)))
    path = tmp_path / "run.parquet"
    write(path, requests, header(sampling=OWN, seed=7), overwrite=True)
    # what a whole law is called does not matter
    own = {"seed": 7, "temperature": 0.8, "top_k": 0, "top_p": 1.0}
    odd = [
        {
            name
            for name, value in ({"seed": 7} | info | info.get("sampling", {})).items()
            if own.get(name, value) != value
        }
        for info in infos
    ]
    told = document(capsys, "info", str(path))["files"][0]["other_settings"]
    counts = Counter(name for names in odd for name in names)
    assert told == {"requests": sum(map(bool, odd)), **counts}
    assert run(["info", str(path)]) == 0
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if line.startswith("sampling"))
    count = told["requests"]
    expected = "" if not count else f"; {count} request{' differs' if count == 1 else 's differ'} ("
    assert f"temperature 0.8, seed 7{expected}" in line
    assert (";" in line) == bool(count)
    assert run(["doctor", str(path)]) == 0
    capsys.readouterr()


def test_info_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(folder)]) == 0
    text = capsys.readouterr().out
    for word in ("tiny", "second", "shared", "threshold", "t=0.7", "finished", "tau", "2 files: 4 requests"):
        assert word in text


def test_info_names_every_kind_of_row_and_no_table_of_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"draft_us": {"us": [1234.5]}, "verify_us": {"us": [6789.5]}}
    engine = header()["engine"] | {"step_time_profile": times}
    write(tmp_path / "run.parquet", tables(1, 2, rounds=3, dense=1), header(engine=engine))
    assert run(["info", str(tmp_path / "run.parquet")]) == 0
    lines = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert lines["engine"][-3:] == ["step", "times", "given"]
    assert not {"1234.5", "{"} & set("".join(lines["engine"]))
    told = [int(word.rstrip(":")) for word in lines["rows"] if word.rstrip(":").isdecimal()]
    assert told[0] == sum(told[1:])
    assert len(told) == 5


def test_info_reads_the_footer_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "part-0.parquet"
    data = bytearray(path.read_bytes())
    data[100:1000] = bytes(900)
    path.write_bytes(data)
    assert document(capsys, "info", str(path))["total"]["files"] == 1


@pytest.mark.parametrize("name", ["missing.parquet", "text.parquet", "empty"])
def test_info_of_no_draft_file(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.parquet").write_text("hello, hello")
    (tmp_path / "empty").mkdir()
    assert run(["info", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert name in captured.err


@pytest.mark.parametrize("form", ["words", "json"])
@pytest.mark.parametrize("bad", ["missing.parquet", "text.parquet", "run.journal", "none"])
@pytest.mark.parametrize("first", [True, False])
def test_info_of_good_files_among_bad_ones(
    folder: Path, bad: str, first: bool, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "text.parquet").write_text("hello, hello")
    (folder / "run.journal").write_bytes(b"\xff\xff\xff\xff and so on")
    (folder / "none").mkdir()
    words = [str(folder / bad), *(str(folder / f"part-{part}.parquet") for part in (0, 1))]
    assert run(["info", *(words if first else words[::-1]), *(["--json"] if form == "json" else [])]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert bad in captured.err
    assert ("2 files: 4 requests" in captured.out) == (form == "words")
    assert form == "words" or captured.out == ""


def test_info_of_a_folder_with_bad_files_tells_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.parquet", "z.parquet"):
        (folder / name).write_text("hello, hello")
    assert run(["info", str(folder), str(folder / "z.parquet")]) == 2
    captured = capsys.readouterr()
    assert "2 files: 4 requests" in captured.out
    assert [line.partition(" is ")[0] for line in captured.err.splitlines()] == [
        f"error: {folder / name}" for name in ("a.parquet", "z.parquet")
    ]


@pytest.mark.parametrize("command", ["info", "doctor", "cat", "replay", "diff"])
@pytest.mark.parametrize(
    ("content", "said"), [(b"", "empty journal"), (b"\xff\xff\xff\xff", "dflash recover")]
)
def test_a_journal_is_told_from_a_draft_file(
    tmp_path: Path, command: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(content)
    assert run([command, *[str(path)] * (2 if command == "diff" else 1)]) == 2
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_schema_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "schema")
    assert [column["name"] for column in found["columns"]] == [column.name for column in COLUMNS]
    jsonschema.Draft202012Validator.check_schema(found["header"])


def test_schema_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    text = capsys.readouterr().out
    assert all(column.name in text for column in COLUMNS)


def test_the_columns_say_of_hidden_states_what_the_header_says() -> None:
    column = next(column for column in COLUMNS if column.name == "feature_values")
    stated = json.loads((SCHEMAS / "header_v1.schema.json").read_text("utf-8"))["$defs"]["features"]
    for words in ("the high bytes of all values", "a byte a value", "feature_scale"):
        assert words in column.meaning
        assert words in stated["properties"]["encoding"]["description"]
    assert "endian" not in (column.unit or "")


@pytest.mark.parametrize(
    "words", [["info", "--help"], ["schema"], *([name, "run.parquet"] for name in ("info", "cat", "doctor"))]
)
def test_the_torch_half_is_not_imported(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path / "run.parquet", tables(0, 1))
    heavy = "torch|transformers|triton|scipy|pandas|duckdb|polars"
    code = (
        "import sys; from dflash.cli.main import run; "
        f"assert run({words!r}) == 0; "
        f"sys.exit(str([name for name in {heavy!r}.split('|') if name in sys.modules] or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
