"""What users hand in by mistake as prompts, and what of their lines is not read: told, never passed over."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dflash.engine.prompts import errors
from dflash.engine.prompts.files import (
    Prompt,
    check_prompts,
    read_prompt_file,
    read_prompt_stream,
    with_remarks,
)
from dflash.engine.prompts.json_line import _FORMS, _SETTINGS

LINE = b'{"prompt": "Why is the sky blue?"}\n'
TABLE = pa.table({"prompt": [f"prompt {number}" for number in range(500)]})


def written(write) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def zipped(sink) -> None:
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("prompts.jsonl", LINE)


OTHER_KINDS = {
    "a Parquet file": written(lambda sink: pyarrow.parquet.write_table(TABLE, sink)),
    "an Arrow file": written(lambda sink: pyarrow.feather.write_feather(TABLE, sink, "uncompressed")),
    "a ZIP archive": written(zipped),
    "a bzip2 archive": bz2.compress(LINE * 500),
    "an xz archive": lzma.compress(LINE * 500),
    "a GGUF model": b"GGUF\x03\0\0\0\x10\x01\0\0",
    "UTF-16 text": LINE.decode().encode("utf-16"),
    "binary data": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl", "p", "p.parquet"])
@pytest.mark.parametrize("wrap", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_file_of_another_kind_is_one_error(kind, wrap, name, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(wrap(OTHER_KINDS[kind]))
    for skip_bad in (False, True):
        with pytest.raises(errors.NotText, match=kind) as raised:
            check_prompts(read_prompt_file(path), skip_bad=skip_bad)
        assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("text", ["PAR1 means what?", "GGUF or safetensors?", "BZh", "a\0b", "GGUF é"])
def test_text_that_begins_as_other_files_do_is_text(text: str) -> None:
    (entry,) = read_prompt_stream(io.BytesIO(text.encode()))
    assert isinstance(entry, Prompt)
    assert entry.turns == (text,)


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf", b'{"prompt": ""}\n'])
def test_a_file_without_prompts_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(data)
    with pytest.raises(errors.NoPrompts, match="expected at least one prompt") as raised:
        check_prompts(read_prompt_file(path), skip_bad=True, name=str(path))
    assert str(raised.value).startswith(f"{path}: ")


MISSPELT = {
    "temprature": "temperature",
    "Temperature": "temperature",
    "max_tokens": "max_new_tokens",
    "max_new_token": "max_new_tokens",
    "max-new-tokens": "max_new_tokens",
    "seeds": "seed",
    "stops": "stop",
    "catgory": "category",
    "top_p": "--top-p",
    "system": "--system",
}


@pytest.mark.parametrize("key", MISSPELT)
def test_a_key_that_means_a_setting_is_refused(key: str) -> None:
    (entry,) = read_prompt_stream(io.BytesIO(json.dumps({"prompt": "hi", key: 1}).encode()), "p.jsonl")
    assert type(entry) is errors.UnknownKey
    assert str(entry).startswith(f"p.jsonl:1: expected no {key!r}")
    assert MISSPELT[key] in str(entry)


# of well-known sets of prompts
FIELDS = ("answer", "source", "question_id", "model", "score", "reference", "canonical_solution", "idx")


@given(
    keys=st.lists(st.sampled_from(FIELDS), unique=True),
    nothing=st.sampled_from([None, "", [], {}]),
    form=st.sampled_from(["prompt", "text"]),
)
def test_other_keys_are_told_once(keys, nothing, form) -> None:
    line = {form: "hi", "seed": 3} | dict.fromkeys(FIELDS, nothing) | dict.fromkeys(keys, "x")
    data = (json.dumps(line) + "\n").encode() * 3
    told: list[str] = []
    entries = list(with_remarks(read_prompt_stream(io.BytesIO(data), "p.jsonl"), told.append))
    assert [type(entry) for entry in entries] == [Prompt] * 3
    named = ", ".join(repr(key) for key in line if key in keys)
    assert told == ([f"p.jsonl:1: keys that are not read: {named}"] if keys else [])


def test_keys_that_are_read_are_never_told() -> None:
    settings = dict.fromkeys(_SETTINGS, 1) | {"stop": "x", "category": "c"}
    for form in _FORMS:
        value = {"prompt": "a", "text": "a", "turns": ["a"]}.get(form, [{"role": "user", "content": "a"}])
        (entry,) = read_prompt_stream(io.BytesIO(json.dumps({form: value} | settings).encode()), "p.jsonl")
        assert isinstance(entry, Prompt)
        assert entry.remark is None


STRUCTURED = ('{"prompt": "x"}', '{"prompt": "half', "{'prompt': 'x'}", "{prompt: x}", ' { "turns" : [')
PLAIN = ("plain", "{}", "{braces} are plain", "{ x + 1 }", "[1, 2]", 'Mend this: {"a": 1', "{{mustache}}: no")


@pytest.mark.parametrize("text", [*STRUCTURED, *PLAIN])
def test_json_lines_in_a_text_file_are_told(text: str) -> None:
    told: list[str] = []
    stream = io.BytesIO(f"first\n{text}\n{text}\n".encode())
    entries = list(with_remarks(read_prompt_stream(stream, "p.txt"), told.append))
    assert [entry.turns for entry in entries if isinstance(entry, Prompt)] == [("first",), (text,), (text,)]
    assert [line.split(": ")[0] for line in told] == (["p.txt:2"] if text in STRUCTURED else [])
    assert all("named .jsonl" in line for line in told)
