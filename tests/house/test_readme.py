"""The README is true: its examples run, its commands, options, links and exit codes exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import duckdb
import pytest

from dflash.cli import main
from dflash.cli.outcome import Exit

ROOT = Path(__file__).parents[2]
MEASUREMENTS = "sample_runs/bench/README.md"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TESTED = re.findall(r"<!-- test: [^>]*-->\n```(\w+)\n(.*?)```", README, re.DOTALL)


def examples(language: str) -> list[str]:
    return [text for found, text in TESTED if found == language]


@pytest.mark.slow
@pytest.mark.network
def test_the_examples_run(tmp_path: Path, default_target: Path) -> None:
    (shell,), (python,), (sql,) = examples("sh"), examples("python"), examples("sql")
    # `dflash` is the module of this repository, whatever is installed
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "dflash"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dflash "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    for words in (["sh", "-e", "-c", shell], [sys.executable, "-c", python]):
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run.parquet").is_file()
    for query in filter(str.strip, sql.split(";")):
        assert duckdb.sql(query.replace("'run.parquet'", f"'{tmp_path / 'run.parquet'}'")).fetchall()


def flags_of(command: click.Command) -> set[str]:
    flags = {flag for option in command.params for flag in option.opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            flags |= flags_of(command.get_command(context, name) or command)
    return flags


def test_every_command_and_option_exists() -> None:
    flags = flags_of(main.app)
    text = README + (ROOT / MEASUREMENTS).read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL) + "".join(examples("sh"))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", prose)) <= flags
    assert set(re.findall(r"^dflash (\w+)|`dflash (\w+)", prose, re.MULTILINE)) <= {
        pair for name in main.COMMANDS for pair in ((name, ""), ("", name))
    }


def test_every_exit_code_is_documented() -> None:
    section = README.split("## Exit codes")[1].split("##")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(
        map(int, Exit)
    )


def test_every_rule_is_documented() -> None:
    from dflash.policy.registry import policies

    section = README.split("## Policies")[1].split("##")[0]
    for rule in policies():
        assert f"`{rule.name}" in section


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", MEASUREMENTS])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    local = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in local if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documented = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^make (\w+)|`make (\w+)", documented, re.MULTILINE)) <= {
        pair for name in targets for pair in ((name, ""), ("", name))
    }


def test_files_of_the_demo_are_named_after_the_drafters_that_made_them() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    made = re.findall(r"\$\(DFLASH\) record(.*) -o demo/(\w+)\.parquet", recipe)
    drafters = [re.search(r"--drafter (\w+)", words) for words, _ in made]
    names = ["default" if found is None else found[1].replace("none", "plain") for found in drafters]
    assert [name for _, name in made] == names
    assert set(re.findall(r"demo/(\w+)\.parquet", recipe + README)) == set(names)
