"""Rules of other distributions: the documented example installed beside us, and whatever may be wrong."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflash.cli.main import app
from dflash.policy.catalogue import find_rule, policies, provider
from dflash.policy.errors import BadEntryPoint, UnknownParameter, UnknownRule
from dflash.policy.registry import Policy, parse_policy

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = GUIDE.split("## A rule of your own")[1].split("\n## ")[0]
(ENTRY,) = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
(CODE,) = re.findall(r"```python\n(.*?)```", SECTION, re.S)

NUMBERS = itertools.count()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(entries, code) puts a distribution called example-rules on the path."""

    def run(entries, code=CODE):
        # no two of the same name, since modules stay imported
        module = f"example_rules_{next(NUMBERS)}"
        folder = tmp_path / f"{module}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: example-rules\nVersion: 1\n")
        lines = "\n".join(f"{name} = {module}:{place}" for name, place in entries.items())
        (folder / "entry_points.txt").write_text(f"[dflash.policies]\n{lines}\n")
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    return run


def test_the_documented_example_is_a_rule_like_any_other(install):
    assert ENTRY.splitlines()[-1] == 'cautious = "my_rules:Cautious"'
    install({"cautious": "Cautious"})
    policy = parse_policy("cautious:t=0.8,length=2,control=window")
    assert str(policy) == "cautious:t=0.8,length=2,control=window"
    assert Policy.from_dict(policy.to_dict()) == policy
    assert provider(find_rule("cautious")) == "example-rules"
    assert provider(find_rule("match")) is None
    with pytest.raises(UnknownParameter, match="'t'"):
        parse_policy("cautious:tt=0.8")
    with pytest.raises(UnknownRule, match="cautious"):
        parse_policy("cautius")


def test_the_command_line_lists_and_replays_it(install, tmp_path):
    install({"cautious": "Cautious"})
    listed = json.loads(CliRunner().invoke(app, ["policies", "--json"]).stdout)
    (entry,) = [rule for rule in listed["rules"] if rule["name"] == "cautious"]
    assert entry["provider"] == "example-rules"
    sample = next((Path(__file__).parents[2] / "sample_runs").glob("*.parquet"))
    texts = ["cautious:t=0.000001", "match", "cautious:t=1"]
    asked = [word for text in texts for word in ("--policy", text)]
    done = CliRunner().invoke(app, ["replay", str(sample), "--rejudge", "--json", *asked])
    assert done.exit_code == 0, done.output
    tau = [row["tau"] for row in json.loads(done.stdout)["runs"][0]["policies"]]
    assert tau[0] == tau[1] >= tau[2]


@pytest.mark.parametrize(
    ("entries", "code", "words"),
    [
        ({"broken": "Broken"}, "import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ({"broken": "Broken"}, "Other = 1", "AttributeError"),
        ({"broken": "Broken"}, "Broken = 1", "1 is none"),
        ({"broken": "Broken"}, "class Broken:\n    name = 'broken'", "is none"),
        ({"broken": "Cautious"}, CODE, "its name is 'cautious'"),
        ({"cautious": "Cautious"}, CODE.replace("def decide", "def judge"), "it lacks decide"),
        ({"cautious": "Cautious"}, re.sub("@dataclass.*", "", CODE), "it is no dataclass"),
        (
            {"cautious": "Cautious"},
            CODE.replace("    t: float", "    nodes: float"),
            "'nodes' is one of every",
        ),
        ({"cautious": "Cautious"}, re.sub(r"parameter\(Num.*", "0.5", CODE), "'t' is not made by"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_distribution(install, entries, code, words):
    install(entries, code)
    (name,) = entries
    with pytest.raises(BadEntryPoint, match="example-rules.*Repair or uninstall") as caught:
        find_rule(name)
    assert words in str(caught.value)
    # the rules built in need none of it
    assert parse_policy("match:length=2").rule.name == "match"


def test_a_name_that_is_taken_is_refused(install):
    install({"match": "Cautious"})
    assert find_rule("match").__module__ == "dflash.policy.match"
    with pytest.raises(BadEntryPoint, match="another rule has that name"):
        policies()
