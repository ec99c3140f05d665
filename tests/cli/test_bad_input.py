"""Bad input to `record` and the readers: its own words, exit code 2, and nothing written or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import write_tiny

from dflash.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a chat template and a window of 512 tokens."""
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a chat template."""
    return write_tiny(tmp_path_factory.mktemp("models") / "plain", template=False)


@pytest.fixture(scope="module")
def recording(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound draft file."""
    path = tmp_path_factory.mktemp("runs") / "run.parquet"
    assert main.run(["record", "hello", "--target", str(tiny), "--max-new-tokens", "8", "-o", str(path)]) == 0
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(words: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    before = contents(folder)
    code = main.run(words)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.splitlines()[-1].startswith("error: "), err
    assert told in err
    assert "fault in dflash" not in err
    assert contents(folder) == before


OPTIONS = [
    (["--tree", "3,0", "--drafter", "self"], "children by depth"),
    (["--tree", "3x2", "--drafter", "self"], "children by depth"),
    (["--tree", "3,2"], "--tree with model or self"),
    (["--tree", "3,2", "--drafter", "self", "--branches", "9"], "at most 6 branches"),
    (["--tree", "2,2,2", "--drafter", "self", "--length", "2"], "raise --length"),
    (["--tree", "9", "--drafter", "self"], "raise --draft-top-k"),
    (["--tree", "2,2", "--drafter", "self", "--draft-top-p", "0.9"], "--draft-top-p 1"),
    (["--temperature", "nan"], "finite number"),
    (["--temperature", "-0.5"], "finite number"),
    (["--temperature", "inf"], "finite number"),
    (["--temperature", "1e-300"], "from 0.0001 to 100"),
    (["--temperature", "1e-40"], "from 0.0001 to 100"),
    (["--top-p", "0"], "finite number"),
    (["--top-p", "1.5"], "finite number"),
    (["--top-p", "nan"], "finite number"),
    (["--draft-temperature", "-1"], "finite number"),
    (["--draft-top-p", "inf"], "finite number"),
    (["--top-k", "-1"], "--top-k"),
    (["--length", "-1"], "--length"),
    (["--branches", "0"], "--branches"),
    (["--seed", "-1"], "--seed"),
    (["--seed", "18446744073709551616"], "--seed"),
    (["--max-new-tokens", "0"], "--max-new-tokens"),
    (["--max-new-tokens", "1.5"], "--max-new-tokens"),
    (["--lanes", "0"], "--lanes"),
    (["--store-topk", "0"], "--store-topk"),
    (["--stop", ""], "--stop"),
    (["--policy", "thresold:t=0.5"], "threshold"),
    (["--policy", "threshold:p=0.5"], "t"),
    (["--policy", "threshold:t=nan"], "finite number"),
    (["--policy", "threshold:t=0"], "above 0"),
    (["--policy", "threshold:t=1.5"], "at most 1"),
    (["--policy", "match:length=-1"], "length"),
    (["--policy", "match:length=9"], "length"),
    (["--policy", "match:branches=0"], "branches"),
    (["-P", "t"], "KEY=VALUE"),
    (["--drafter", "ngarm"], "ngram"),
    (["--device", "abacus"], "abacus"),
    (["--dtype", "float8"], "--dtype"),
]


@pytest.mark.parametrize(("options", "told"), OPTIONS, ids=[" ".join(options) for options, _ in OPTIONS])
def test_values_that_make_no_sense(
    options: list[str], told: str, tiny: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(
        ["record", "hello", "--target", str(tiny), "-o", "run.parquet", *options], told, in_folder, capsys
    )


PROMPTS = [
    (b"", "expected at least one prompt"),
    (b'{"prompt": "fine"}\n{"prompt": "half', "prompts.jsonl:2: expected one complete JSON object"),
    (b'{"prompt": "fine"}\n{"prompt": ""}\n', "prompts.jsonl:2: expected some text"),
    (b'{"prompt": "\xff"}\n', "prompts.jsonl:1: expected UTF-8"),
    (b'{"prompt": "fine", "temperature": NaN}\n', "prompts.jsonl:1: expected 'temperature'"),
    (
        b'{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n',
        "prompts.jsonl:2: expected its own id",
    ),
    (b'{"prompt": "fine"}\n{"prompt": "' + b"long " * 200 + b'"}\n', "prompts.jsonl:2"),
]


@pytest.mark.parametrize(("text", "told"), PROMPTS, ids=[told for _, told in PROMPTS])
def test_files_of_prompts_are_checked_whole(
    text: bytes, told: str, tiny: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "prompts.jsonl").write_bytes(text)
    words = ["record", "--prompts", "prompts.jsonl", "--target", str(tiny), "-o", "run.parquet"]
    refused(words, told, in_folder, capsys)


def test_prompts_that_the_model_cannot_take(
    tiny: Path, plain: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ["record", "-o", "run.parquet", "--target"]
    refused([*record, str(tiny), ""], "empty prompt", in_folder, capsys)
    refused([*record, str(tiny), "word " * 500], "512", in_folder, capsys)
    (in_folder / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    refused([*record, str(plain), "--prompts", "chat.jsonl"], "chat template", in_folder, capsys)


def test_models_that_cannot_be_used(
    tmp_path: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "empty").mkdir()
    (in_folder / "mamba").mkdir()
    (in_folder / "mamba" / "config.json").write_text(
        '{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}'
    )
    (in_folder / "broken.gguf").write_bytes(b"GGUF")
    record = ["record", "hello", "-o", "run.parquet", "--target"]
    for target, told in {
        "./missing": "missing",
        "missing.gguf": "missing.gguf",
        "broken.gguf": "broken.gguf",
        "empty": "empty",
        "mamba": "state",
    }.items():
        refused([*record, target], told, in_folder, capsys)


def test_outputs_that_cannot_be_written(
    tiny: Path, recording: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ["record", "hello", "--target", str(tiny), "-o"]
    (in_folder / "run.parquet").write_bytes(recording.read_bytes())
    refused([*record, "run.parquet"], "--overwrite", in_folder, capsys)
    refused([*record, "missing/run.parquet"], "missing", in_folder, capsys)
    refused([*record, "run.parquet/run.parquet"], "run.parquet", in_folder, capsys)


READERS = [["info"], ["replay"], ["replay", "--check"], ["cat"]]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_files_that_are_no_draft_files(
    words: list[str], recording: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = recording.read_bytes()
    bad = {"empty": b"", "text": b"hello\n" * 50, "cut": whole[:-100], "half": whole[: len(whole) // 2]}
    for name, data in bad.items():
        (in_folder / f"{name}.parquet").write_bytes(data)
    for name in ("missing", *bad):
        refused([*words, f"{name}.parquet"], f"{name}.parquet", in_folder, capsys)


def test_policies_that_cannot_be_replayed(
    recording: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy, told in {"mach": "match", "threshold:t=inf": "finite", "match:lenght=2": "length"}.items():
        refused(["replay", str(recording), "--policy", policy], told, in_folder, capsys)
    several = ["replay", str(recording), "--policy", "match", "--policy", "greedy", "-P", "length=1"]
    refused(several, "-P", in_folder, capsys)


def start(words: list[str], cwd: Path, **streams: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "dflash", *words], cwd=cwd, env=environment, **streams)


@pytest.mark.slow
def test_a_bad_line_of_a_stream_is_skipped_and_counted(tiny: Path, in_folder: Path) -> None:
    words = ["record", "--prompts", "-", "--target", str(tiny), "--max-new-tokens", "4", "-o", "run.parquet"]
    running = start(words, in_folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, told = running.communicate(b'{"prompt": "one"}\n{"prompt": \n{"prompt": "two"}\n', timeout=120)
    assert running.returncode == 3, told
    assert b"stdin:2" in told
    from dflash import open_draft_file

    assert open_draft_file(in_folder / "run.parquet").requests == 2


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_recorded(tiny: Path, in_folder: Path) -> None:
    prompts = [f"prompt {number}" for number in range(50)]
    words = ["record", *prompts, "--target", str(tiny), "--max-new-tokens", "400", "-o", "run.parquet"]
    with start(words, in_folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=120)
    assert running.returncode == 130, told
    from dflash import open_draft_file

    file = open_draft_file(in_folder / "run.parquet")
    assert file.run_status == "interrupted"
    assert 0 < file.requests < 50


@pytest.mark.slow
def test_a_closed_pipe_is_told_apart_and_the_file_is_finished(tiny: Path, in_folder: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = ["record", "hello", "--target", str(tiny), "--max-new-tokens", "40", "-o", "run.parquet"]
    running = start(words, in_folder, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 141, told
    from dflash import open_draft_file

    assert open_draft_file(in_folder / "run.parquet").run_status in {"finished", "interrupted"}
