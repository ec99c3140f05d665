"""Exit codes and streams of the real command, in real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DFLASH = [sys.executable, "-m", "dflash"]


def dflash(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables
    return subprocess.run(
        [*DFLASH, *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def test_done() -> None:
    done = dflash("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dflash ")


def test_a_bare_command_shows_help_and_is_a_usage_error() -> None:
    done = dflash()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: dflash" in done.stderr


WRONG = [
    (["recrod"], "Did you mean 'record'?"),
    (["--jsn"], "No such option"),
    (["models", "list", "--jso"], "Did you mean '--json'?"),
    (["models", "pull", "no-such-model"], "Expected a model of the catalogue"),
    (["models", "pull", "SmolLM2-135M-Instuct"], "Did you mean 'SmolLM2-135M-Instruct'?"),
    (["models", "fetch"], "No such command"),
    (["schema", "columns"], "unexpected extra argument"),
    (["recover", "missing.parquet"], "expected the journal of a recording"),
    (["recover", "missing.journal"], "expected the journal of a recording"),
    (["bench", "recrod"], "There is no command `dflash bench recrod`. Did you mean 'record'?"),
    (
        ["--settings", "missing.toml", "env"],
        "missing.toml: expected settings as TOML, but there is no such file.",
    ),
    (["record", "x", "--length", "x"], "'--length': expected a whole number from 0 to 128, found 'x'"),
    (["plan", "--length", "2.5"], "'--length': expected a whole number from 0 to 128, found '2.5'"),
    (["train", "--steps", ""], "'--steps': expected a whole number from 1 to"),
    (["bench", "step", "--lanes", "no"], "'--lanes': expected a whole number of 1 or more, found 'no'"),
    (["replay", "x", "--policy", "no.toml"], "no.toml: expected a policy as TOML with [rule], [shape] and"),
]


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_usage_errors_are_one_line_on_stderr(words: list[str], told: str) -> None:
    done = dflash(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not re.search(r"[^.?!] See `", done.stderr)


def test_debug_shows_where_before_or_after_the_command() -> None:
    for words in (["--debug", "models", "path", "x"], ["models", "path", "x", "--debug"]):
        done = dflash(*words)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert "error: " in done.stderr


def test_a_closed_pipe_is_not_a_difference() -> None:
    for words in (["--help"], ["models", "list"], ["models", "list", "--json"], ["env", "--help"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run([*DFLASH, *words], stdout=write_end, stderr=subprocess.PIPE, check=False)
        os.close(write_end)
        assert (done.returncode, done.stderr) == (141, b""), words


def test_interrupted() -> None:
    script = (
        "import signal, sys, time, click\n"
        # a shell that starts the tests in the background ignores interrupts, and children inherit that
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dflash.cli import main\n"
        "@main.app.command()\n"
        "def wait():\n"
        "    print('waiting', flush=True)\n"
        "    time.sleep(60)\n"
        "main.app.table = {'wait': main.Entry('', '')}\n"
        "main.LazyGroup.get_command = lambda group, context, name: wait\n"
        "sys.exit(main.run(['wait']))\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=30)
    assert (running.returncode, told) == (130, "error: interrupted.\n")


def test_settings_come_from_flags_then_environment_then_file(tmp_path: Path) -> None:
    (tmp_path / "dflash.toml").write_text("[models]\n[env]\njson = true\n")
    assert dflash("env", cwd=tmp_path).stdout.startswith("{")
    assert not dflash("env", cwd=tmp_path, DFLASH_ENV_JSON="0").stdout.startswith("{")
    assert dflash("env", "--json", cwd=tmp_path, DFLASH_ENV_JSON="0").stdout.startswith("{")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[evn]\n", "Did you mean 'env'?"),
        ("[env]\njsn = true\n", "Did you mean 'json'?"),
        ("env = 3\n", "expected one section a command"),
        ("[env\n", "cannot be read"),
        ("[env]\njson = [true]\n", "expected one value"),
        ("[env]\njson = {}\n", "expected one value"),
        ("[record]\nmax-new-tokens = 3\nmax_new_tokens = 4\n", "once"),
    ],
)
def test_a_wrong_settings_file_is_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "dflash.toml").write_text(text)
    done = dflash("env", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "fault in dflash" not in done.stderr


def test_no_colour_codes_without_a_terminal() -> None:
    done = dflash("models", "list")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_full_disk_is_told_in_words() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*DFLASH, "models", "list", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("written", ['"x"', "2.5", "true", "inf", '""'])
@pytest.mark.parametrize("command", ["plan", "record", "tune"])
def test_what_settings_hold_for_a_whole_number_is_one(tmp_path: Path, command: str, written: str) -> None:
    option = "limit" if command == "tune" else "length"
    (tmp_path / "dflash.toml").write_text(f"[{command}]\n{option} = {written}\n")
    given = ["--alpha", "0.5"] if command == "plan" else ["x"]
    done = dflash(command, *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'--{option}': expected a whole number" in done.stderr
    text = dflash(command, *given, cwd=tmp_path, **{f"DFLASH_{command}_{option}".upper(): "no"}).stderr
    assert f"'--{option}': expected a whole number" in text
    assert "found 'no'" in text
