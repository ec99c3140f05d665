"""Policies as TOML: the form of the README, the way there and back, and every way to be wrong."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from test_registry import POLICIES

from dflash.cli.main import app
from dflash.errors import UsageError
from dflash.policy import errors
from dflash.policy.policy_file import policy_toml, read_policy_file
from dflash.policy.registry import Policy, parse_policy

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8").split("## Policies")[1].split("\n## ")[0]
((SHORT, TOML),) = re.findall(r'```toml\n# best.toml is "(.*?)"\n(.*?)```', README, re.S)


def written(folder, text, name="best.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@given(POLICIES)
def test_a_policy_reads_back_from_toml(policy):
    text = policy_toml(policy.to_dict(), "found by\n\na search")
    assert text.startswith("# found by\n#\n# a search\n")
    assert Policy.from_dict(tomllib.loads(text)) == policy


def test_the_file_of_the_readme_is_its_short_form(tmp_path):
    path = written(tmp_path, TOML)
    assert parse_policy(path) == parse_policy(SHORT)
    assert parse_policy(
        written(tmp_path, policy_toml(parse_policy(path).to_dict()), "b.toml")
    ) == parse_policy(SHORT)


def test_pairs_are_added_to_a_file_and_never_override(tmp_path):
    path = written(tmp_path, TOML)
    policy = parse_policy(path, {"branches": "2", "delta": "0.1", "control.high": "0.8"})
    assert str(policy) == f"{SHORT},control.high=0.8".replace("length=4", "delta=0.1,length=4,branches=2")
    for key in ("eps", "length", "control", "control.low"):
        with pytest.raises(errors.RepeatedParameter, match=re.escape(key)):
            parse_policy(path, {key: "0.5"})


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", errors.BadPolicyFile, "[rule] has no name"),
        ("[rule]\neps = 0.3", errors.BadPolicyFile, "[rule] has no name"),
        ("[rule\n", errors.BadPolicyFile, "cannot be read"),
        ("rule = 'match'", errors.UnknownSection, "the key 'rule'"),
        ("[rule]\nname = 'match'\n[shap]\nlength = 2", errors.UnknownSection, "mean 'shape'"),
        ("name = 'match'", errors.UnknownSection, "name under [rule]"),
        ("[rule]\nnam = 'match'", errors.BadPolicyFile, "only 'nam'"),
        ("[rule]\nname = 'mach'", errors.UnknownRule, "match"),
        ("[rule]\nname = 'match'\nlength = 2", errors.MisplacedParameter, "'length' under [shape]"),
        ("[rule]\nname = 'typical'\n[shape]\neps = 0.1", errors.MisplacedParameter, "'eps' under [rule]"),
        ("[rule]\nname = 'match'\n[shape]\nlenght = 2", errors.UnknownParameter, "mean 'length'"),
        ("[rule]\nname = 'match'\n[shape]\nlength = 2.5", errors.BadParameter, "whole number"),
        ("[rule]\nname = 'match'\n[shape]\nlength = true", errors.BadParameter, "whole number"),
        ("[rule]\nname = 'typical'\neps = nan", errors.BadParameter, "finite"),
        ("[rule]\nname = 'synthetic'\nrates = [0.5, 0.6]", errors.BadParameter, "do not rise"),
        ("[rule]\nname = 'synthetic'", errors.MissingParameter, "rates"),
        ("[rule]\nname = 'match'\n[control]\nname = 'windo'", errors.UnknownControl, "window"),
        ("[rule]\nname = 'match'\n[control]\nname = 'window'\nlo = 1", errors.UnknownParameter, "low"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, kind, words):
    path = written(tmp_path, text)
    with pytest.raises(kind, match=re.escape(words)) as caught:
        parse_policy(path)
    assert path in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["run.parquet", "prompts.jsonl", "match.txt"])
def test_a_file_that_is_no_policy_is_told_as_such(tmp_path, name):
    """A draft file is one by its name, whether it is there or not; a rule's name is never a file."""
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(errors.PolicyIsFile, match=re.escape(name)):
        parse_policy(str(path))
    with pytest.raises(errors.PolicyIsFile):
        parse_policy("elsewhere.parquet")


def test_a_rule_is_one_beside_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "match").write_bytes(b"")
    assert str(parse_policy("match")) == "match"


@pytest.mark.parametrize("content", [None, b"\xff\xfe[rule]"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "no.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.BadPolicyFile, match=re.escape(str(path))):
        read_policy_file(path)


def test_replay_takes_a_file_wherever_it_takes_a_policy(tmp_path):
    sample = next((ROOT / "sample_runs").glob("*.parquet"))
    path = written(tmp_path, "[rule]\nname = 'threshold'\nt = 0.6\n[shape]\nlength = 2\n")
    words = ["replay", str(sample), "--rejudge", "--json"]
    by_file = CliRunner().invoke(app, [*words, "--policy", path])
    by_text = CliRunner().invoke(app, [*words, "--policy", "threshold:t=0.6,length=2"])
    assert by_file.exit_code == by_text.exit_code == 0, by_file.output
    assert json.loads(by_file.stdout) == json.loads(by_text.stdout)
    twice = CliRunner().invoke(app, [*words, "--policy", path, "-P", "length=1"])
    assert isinstance(twice.exception, errors.RepeatedParameter)
    again = CliRunner().invoke(app, [*words, "--policy", "match", "-P", "length=1", "-P", "length=2"])
    assert isinstance(again.exception, UsageError)
    assert "given twice" in str(again.exception)
