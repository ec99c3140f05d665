"""Prompts come in unchanged whatever they are wrapped in; each way to be wrong has its own error."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
    text_prompt,
    with_ids,
)
from dflash.engine.prompts.prompt import Kind, Message, Role

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1).filter(
    lambda text: text.strip() and not text.endswith("\r") and not text.startswith(("\ufeff", "{"))
)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_frames(data: bytes) -> bytes:
    return b"".join(zstd(data[i : i + 7]) for i in range(0, len(data), 7)) or zstd(data)


def gzip_members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[i : i + 7]) for i in range(0, len(data), 7)) or gzip.compress(data)


WRAPPINGS: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, gzip_members, zstd, zstd_frames]


def read(data: bytes, name: str = "stdin") -> list[Prompt | errors.PromptError]:
    return list(read_prompt_stream(io.BytesIO(data), name))


def one_line(**line: object) -> Prompt | errors.PromptError:
    (entry,) = read(json.dumps(line).encode(), "lines.jsonl")
    return entry


@given(
    texts=st.lists(TEXT, min_size=1, max_size=5),
    mark=st.booleans(),
    ending=st.sampled_from(["\n", "\r\n"]),
    wrap=st.sampled_from(WRAPPINGS),
    as_json=st.booleans(),
)
def test_the_same_prompts_come_out_of_every_wrapping(
    texts: list[str], mark: bool, ending: str, wrap: Callable[[bytes], bytes], as_json: bool
) -> None:
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts] if as_json else texts
    data = ending.join(lines).encode("utf-8-sig" if mark else "utf-8")
    entries = read(wrap(data))
    assert [entry.turns for entry in entries if isinstance(entry, Prompt)] == [(text,) for text in texts]


@given(
    texts=st.lists(TEXT, min_size=1, max_size=4), cut=st.integers(1, 30), wrap=st.sampled_from(WRAPPINGS[1:])
)
def test_a_compressed_stream_that_is_cut_short_never_passes(
    texts: list[str], cut: int, wrap: Callable[[bytes], bytes]
) -> None:
    whole = wrap("\n".join(texts).encode())
    # a cut between two frames is a complete stream, which no reader can tell from the whole
    single = wrap in (gzip.compress, zstd)
    packed = whole[: -min(cut, len(whole) - 5)] if single else whole[:-1]
    assert isinstance(read(packed)[-1], errors.DamagedCompression)


@pytest.mark.parametrize("wrap", WRAPPINGS[1:3], ids=["gzip", "gzip members"])
def test_a_flipped_byte_of_gzip_is_found(wrap: Callable[[bytes], bytes]) -> None:
    packed = bytearray(wrap(b"one prompt\nanother prompt\n" * 20))
    packed[len(packed) // 2] ^= 0x55
    assert isinstance(read(bytes(packed))[-1], errors.DamagedCompression)


def test_a_name_that_promises_compression_is_held_to_it(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt.zst"
    path.write_bytes(b"plain text\n")
    with pytest.raises(errors.DamagedCompression):
        list(read_prompt_file(path))


FORMS = [
    ({"prompt": "hi"}, Kind.TEXT, (), ("hi",)),
    ({"text": "hi"}, Kind.TEXT, (), ("hi",)),
    ({"turns": ["one", "two"]}, Kind.TURNS, (), ("one", "two")),
    (
        {
            "messages": [
                {"role": "developer", "content": "be kind"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "1"},
                {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]},
            ]
        },
        Kind.MESSAGES,
        (Message(Role.SYSTEM, "be kind"), Message(Role.USER, "one"), Message(Role.ASSISTANT, "1")),
        ("two",),
    ),
    (
        {
            "conversations": [
                {"from": "human", "value": "one"},
                {"from": "gpt", "value": "1"},
                {"from": "human", "value": "two"},
                {"from": "gpt", "value": "2"},
            ]
        },
        Kind.MESSAGES,
        (Message(Role.USER, "one"), Message(Role.ASSISTANT, "1")),
        ("two",),
    ),
]


@pytest.mark.parametrize(
    ("line", "kind", "history", "turns"), FORMS, ids=[next(iter(form[0])) for form in FORMS]
)
def test_every_form_of_a_line(
    line: dict[str, object], kind: Kind, history: tuple[Message, ...], turns: tuple[str, ...]
) -> None:
    entry = one_line(**line, unknown={"ignored": True})
    assert isinstance(entry, Prompt)
    assert (entry.kind, entry.history, entry.turns) == (kind, history, turns)


def test_settings_of_a_line() -> None:
    entry = one_line(
        prompt="hi",
        id=7,
        seed=2**64 - 1,
        temperature=0,
        max_new_tokens=1,
        stop="END",
        category="c",
        top_p=None,
    )
    assert isinstance(entry, Prompt)
    assert (entry.id, entry.seed, entry.temperature, entry.max_new_tokens) == ("7", 2**64 - 1, 0, 1)
    assert (entry.stop, entry.category) == (("END",), "c")


WRONG = [
    (b'{"prompt": "half', errors.BrokenLine),
    (b'["a list"]', errors.BrokenLine),
    (b"[" * 100_000, errors.BrokenLine),
    (b'{"question": "?"}', errors.UnknownShape),
    (b'{"prompt": "a", "text": "b"}', errors.UnknownShape),
    (b'{"prompt": 3}', errors.UnknownShape),
    (b'{"turns": []}', errors.UnknownShape),
    (b'{"turns": [1]}', errors.UnknownShape),
    (b'{"turns": "one"}', errors.UnknownShape),
    (b'{"messages": []}', errors.UnknownShape),
    (b'{"messages": ["one"]}', errors.UnknownShape),
    (b'{"messages": [{"role": "assistant", "content": "1"}]}', errors.UnknownShape),
    (b'{"messages": [{"role": "tool", "content": "1"}]}', errors.UnknownShape),
    (b'{"messages": [{"role": ["user"], "content": "1"}]}', errors.UnknownShape),
    (b'{"messages": [{"role": "user", "content": null}]}', errors.UnknownShape),
    (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', errors.UnknownShape),
    (b'{"prompt": ""}', errors.EmptyPrompt),
    (b'{"prompt": " \\n "}', errors.EmptyPrompt),
    (b'{"turns": ["one", ""]}', errors.EmptyPrompt),
    (b'{"messages": [{"role": "user", "content": ""}]}', errors.EmptyPrompt),
    (b'{"prompt": "\xff"}', errors.NotUtf8),
    (b'{"prompt": "\\ud800"}', errors.NotUtf8),
    (b'{"prompt": "a", "id": ""}', errors.BadSetting),
    (b'{"prompt": "a", "id": [1]}', errors.BadSetting),
    (b'{"prompt": "a", "seed": -1}', errors.BadSetting),
    (b'{"prompt": "a", "seed": true}', errors.BadSetting),
    (b'{"prompt": "a", "seed": 18446744073709551616}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": NaN}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": Infinity}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": -0.5}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": "0.5"}', errors.BadSetting),
    (b'{"prompt": "a", "max_new_tokens": 0}', errors.BadSetting),
    (b'{"prompt": "a", "max_new_tokens": 1.5}', errors.BadSetting),
    (b'{"prompt": "a", "stop": ""}', errors.BadSetting),
    (b'{"prompt": "a", "stop": ["x", ""]}', errors.BadSetting),
    (b'{"prompt": "a", "category": 1}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": 1e-300}', errors.BadSetting),
    (b'{"prompt": "a", "temperature": 101}', errors.BadSetting),
    (b'{"prompt": "a", "id": "\\ud800"}', errors.BadSetting),
    (b'{"prompt": "a", "stop": ["x", "\\udfff"]}', errors.BadSetting),
    (b'{"prompt": "a", "category": "\\udbff"}', errors.BadSetting),
]


@pytest.mark.parametrize(("line", "kind"), WRONG, ids=[wrong[0][:50].decode("latin-1") for wrong in WRONG])
def test_each_wrong_line_has_its_error_and_its_number(
    line: bytes, kind: type[errors.PromptError], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b'\n{"prompt": "fine too"}\n')
    before, wrong, after = read_prompt_file(path)
    assert isinstance(before, Prompt)
    assert isinstance(after, Prompt)
    assert type(wrong) is kind
    assert str(wrong).startswith(f"{path}:3: ")
    with pytest.raises(kind):
        check_prompts(read_prompt_file(path))
    checked = check_prompts(read_prompt_file(path), skip_bad=True)
    assert (len(checked.prompts), len(checked.refused)) == (2, 1)


def test_several_wrong_lines_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": ""}\n' * 7 + b'{"prompt": "fine"}\n')
    with pytest.raises(errors.SeveralBadPrompts, match="7 prompts cannot be used") as raised:
        check_prompts(read_prompt_file(path))
    assert f"{path}:5:" in str(raised.value)
    assert "and 2 more" in str(raised.value)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_file_that_cannot_be_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.PromptFileUnreadable):
        list(read_prompt_file(tmp_path / name))


@pytest.mark.parametrize("data", [b"", b"\n\r\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_prompts(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(data)
    with pytest.raises(errors.NoPrompts):
        check_prompts(read_prompt_file(path))


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_prompt_on_the_command_line(text: str) -> None:
    with pytest.raises(errors.EmptyPrompt):
        text_prompt(text)


def test_text_that_looks_like_json_stays_text_in_a_txt_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('{"prompt": "x"}\nplain\n')
    assert [entry.turns for entry in check_prompts(read_prompt_file(path)).prompts] == [
        ('{"prompt": "x"}',),
        ("plain",),
    ]


def test_ids_are_unique_and_repeated_ones_are_told() -> None:
    lines = [{"prompt": "a"}, {"prompt": "b", "id": "2"}, {"prompt": "c"}, {"prompt": "d", "id": "2"}]
    entries = list(with_ids(read("\n".join(map(json.dumps, lines)).encode())))
    ids = [entry.id for entry in entries if isinstance(entry, Prompt)]
    assert len(set(ids)) == len(ids) == 3
    assert isinstance(entries[3], errors.DuplicateId)
    assert "stdin:2" in str(entries[3])


@pytest.mark.parametrize("turns_first", [True, False])
def test_an_id_that_a_turn_of_another_prompt_has_is_told_before_decoding(turns_first: bool) -> None:
    lines = [{"turns": ["a", "b"], "id": "x"}, {"prompt": "c", "id": "x/1"}]
    data = "\n".join(map(json.dumps, lines if turns_first else lines[::-1])).encode()
    first, second = with_ids(read(data))
    assert isinstance(first, Prompt)
    assert isinstance(second, errors.DuplicateId)
    assert "'x/1'" in str(second)


def test_a_stream_is_read_as_it_arrives() -> None:
    script = (
        "import sys\n"
        "from dflash.engine.prompts.files import read_prompt_stream\n"
        "for entry in read_prompt_stream(sys.stdin.buffer):\n"
        "    print(entry.turns[0], flush=True)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for text in ("first", "second"):
            reader.stdin.write(text + "\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == text + "\n"
        reader.stdin.close()


def test_prompts_need_no_torch() -> None:
    script = (
        "import sys, dflash.engine.prompts.files; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
