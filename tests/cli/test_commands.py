"""Every command has help and a place in the README; every JSON document keeps its schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest

from dflash.cli import main
from dflash.cli.options import FiniteFloat
from dflash.cli.output import jsonable

ROOT = Path(__file__).parents[2]
SCHEMAS = sorted((ROOT / "schemas").glob("*.schema.json"))


def commands(group: click.Group = main.app, above: str = "") -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((above + name, command))
        if isinstance(command, click.Group):
            found += commands(command, f"{above}{name} ")
    return found


COMMANDS = commands()
NAMES = [name for name, _ in COMMANDS]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=NAMES)
def test_commands_and_options_have_help(name: str, command: click.Command) -> None:
    assert command.help, "a command says what it does"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{parameter.opts[0]} says what it does"
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--quiet", "--verbose"} <= flags


@pytest.mark.parametrize(
    "flag", ["--target", "--target-quant", "--device", "--dtype", "--overwrite", "--json", "--quiet"]
)
def test_an_option_of_several_commands_is_one_option(flag: str) -> None:
    """Same values, same default, same words."""
    found = [
        parameter
        for _, command in COMMANDS
        for parameter in command.params
        if isinstance(parameter, click.Option) and flag in parameter.opts
    ]
    assert len(found) > 1
    assert (
        len({(each.help, each.default, str(each.type.to_info_dict()), each.is_flag) for each in found}) == 1
    )


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_the_readme_documents_the_command(name: str) -> None:
    assert f"`dflash {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_help_is_quick_because_it_imports_no_torch(name: str) -> None:
    script = (
        "import sys\n"
        "from dflash.cli.main import run\n"
        f"code = run([{name!r}, '--help'])\n"
        "heavy = {'torch', 'transformers', 'triton', 'scipy'} & set(sys.modules)\n"
        "sys.exit(code or str(sorted(heavy)) if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: dflash {name} ")


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_schemas_are_schemas(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    name, version = path.name.removesuffix(".schema.json").rsplit("_v", 1)
    assert schema["$id"] == f"dflash.{name}/{version}"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main.run(words) == 0
    text = capsys.readouterr().out
    found: dict[str, object] = json.loads(text)
    kind, version = str(found["schema"]).removeprefix("dflash.").split("/")
    schema = json.loads((ROOT / "schemas" / f"{kind}_v{version}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    return found


@pytest.mark.parametrize("words", [("models", "list"), ("env",), ("policies",), ("schema",)], ids=" ".join)
def test_json_documents_keep_their_schema(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, *words, "--json")


def test_json_has_no_infinities() -> None:
    value = {"a": [1.5, float("-inf"), (float("nan"), 2)], "b": {"c": float("inf")}}
    assert jsonable(value) == {"a": [1.5, None, [None, 2]], "b": {"c": None}}


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("nan", {}),
        ("inf", {}),
        ("-inf", {}),
        ("1e999", {}),
        ("abc", {}),
        ("", {}),
        ("-1", {"minimum": 0}),
        ("0", {"minimum": 0, "open_minimum": True}),
        ("1", {"maximum": 1, "open_maximum": True}),
        ("1.01", {"maximum": 1}),
    ],
)
def test_numbers_that_are_none_are_refused(text: str, bounds: dict[str, float]) -> None:
    kind = FiniteFloat(
        bounds.get("minimum"),
        bounds.get("maximum"),
        open_minimum=bool(bounds.get("open_minimum")),
        open_maximum=bool(bounds.get("open_maximum")),
    )
    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


def test_numbers_within_bounds_pass() -> None:
    assert FiniteFloat(0, 1).convert("1", None, None) == 1.0
    assert FiniteFloat(0, open_minimum=True).convert("1e-9", None, None) == 1e-9
