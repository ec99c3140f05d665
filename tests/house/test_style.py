"""The shape of the code, as a ratchet: sizes, words and imports stay within what CONTRIBUTING.md promises."""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dflash"
SOURCES = sorted(PACKAGE.rglob("*.py")) + sorted((PACKAGE / "kernels").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MEDIAN_FILE = 120
MEDIAN_FUNCTION = 10
COMMENT_SHARE = 0.06

# what each part may import of the project, besides itself and dflash.errors
LAYERS = {
    "kernels": set(),
    "draftfile": set(),
    "policy": {"draftfile"},
    "replay": {"draftfile", "policy"},
    "diff": {"draftfile", "policy", "replay"},
    "report": {"draftfile", "policy", "replay", "diff"},
    "target": {"kernels", "draftfile", "policy"},
    "drafters": {"kernels", "target", "draftfile", "policy"},
    "engine": {"kernels", "target", "drafters", "draftfile", "policy"},
    "training": {"kernels", "target", "drafters", "engine", "draftfile", "policy"},
    "bench": {"kernels", "target", "drafters", "engine", "draftfile", "policy", "replay", "diff"},
}
LIGHT = {"draftfile", "policy", "replay", "diff", "report"}
LIGHT_COMMANDS = {"replay", "info", "diff", "doctor", "cat", "schema", "policies", "recover", "plan", "tune"}
HEAVY_IMPORTS = {"torch", "transformers", "triton", "scipy"}
# measured against where they are installed, never needed
PEERS = {"duckdb", "flashinfer", "xformers"}
# an extra, imported when a figure is drawn
PLOTS = {"matplotlib"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every dotted name that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(str(node.module))
    return names


def functions_of(path: Path) -> list[tuple[str, int]]:
    found = [
        node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        (f"{path.relative_to(ROOT)}:{node.name}", int(node.end_lineno or 0) - node.lineno + 1)
        for node in found
    ]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def comments_of(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_files_are_short() -> None:
    long = {str(path.relative_to(ROOT)): lines_of(path) for path in SOURCES + TESTS}
    assert {name: lines for name, lines in long.items() if lines > LONGEST_FILE} == {}
    sizes = [lines_of(path) for path in SOURCES if path.name != "__init__.py"]
    assert statistics.median(sizes) <= MEDIAN_FILE


def test_functions_are_short() -> None:
    sizes = [size for path in SOURCES for size in functions_of(path)]
    assert [size for size in sizes if size[1] > LONGEST_FUNCTION] == []
    assert statistics.median(lines for _, lines in sizes) <= MEDIAN_FUNCTION


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_say_what_they_are_for(path: Path) -> None:
    said = ast.get_docstring(tree_of(path))
    assert said, "a module starts with one to four lines that say what it is for"
    summary = said.split("\n\n")[0]
    assert len(summary.splitlines()) <= 4


def test_comments_are_rare_and_say_why() -> None:
    comments = {path: comments_of(path) for path in SOURCES}
    own = sum(len(found) for found in comments.values())
    assert own <= COMMENT_SHARE * sum(map(lines_of, SOURCES))
    banned = re.compile(r"#\s*(?:[-=#*]{4,}|TODO|FIXME|XXX|HACK)")
    assert [text for found in comments.values() for text in found if banned.match(text)] == []


def test_no_drawers_and_no_swallowed_errors() -> None:
    assert [path for path in SOURCES if path.stem in {"utils", "util", "helpers", "misc", "common"}] == []
    swallowed = re.compile(r"except(?: (?:Base)?Exception)?:\s*\n\s*(?:pass|continue)\b")
    assert [path for path in SOURCES if swallowed.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("part", sorted(LAYERS))
def test_parts_import_one_way(part: str) -> None:
    allowed = LAYERS[part] | {part, "errors", "schemas"}
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        if part_of(path) == part
        for name in imports_of(path)
        if name.startswith("dflash.") and name.split(".")[1] not in allowed
    }
    assert wrong == set()


def test_every_part_has_a_place_in_the_order() -> None:
    assert {part_of(path) for path in SOURCES} - set(LAYERS) == {"__init__", "__main__", "cli", "errors"}


def test_reading_and_replaying_know_nothing_of_torch() -> None:
    light = [
        path
        for path in SOURCES
        if part_of(path) in LIGHT or (part_of(path) == "cli" and path.stem.split("_")[0] in LIGHT_COMMANDS)
    ]
    heavy = {"dflash.target", "dflash.engine", "dflash.drafters", "dflash.training", "dflash.kernels"}
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in light
        for name in imports_of(path)
        if name.split(".")[0] in HEAVY_IMPORTS or ".".join(name.split(".")[:2]) in heavy
    }
    assert wrong == set()


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!;\[ ]", need)[0].lower() for need in project["dependencies"]}
    # torch's CUDA builds bring triton; transformers is made of tokenizers and huggingface_hub
    brought = {"triton", "tokenizers", "huggingface_hub"}
    allowed = declared | brought | {"dflash"} | {name.lower() for name in sys.stdlib_module_names}
    imported = {name.split(".")[0] for path in SOURCES for name in imports_of(path)} - PEERS - PLOTS
    missing = {name for name in imported if name.lower() not in allowed}
    assert missing == set()


def test_figures_alone_need_the_extra() -> None:
    plotting = {path.name for path in SOURCES for name in imports_of(path) if name.split(".")[0] in PLOTS}
    assert plotting == {"surface.py"}


def test_tests_have_names_of_their_own() -> None:
    names = [path.name for path in TESTS if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
    assert list((ROOT / "tests").rglob("__init__.py")) == []
