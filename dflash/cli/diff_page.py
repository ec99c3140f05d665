"""The report of a comparison as headings, lines and tables, the same for text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.cli import diff_numbers
from dflash.cli.diff_grid import Grid, cell, number, signed
from dflash.cli.policy_cell import counted

Json = Mapping[str, Any]
ShowToken = Callable[[int], str]
Part = tuple[list[str], list[Grid]]

_FROM_ROWS = {"drafts", "probabilities", "features", "decisions"}
_EQUAL = "Equal by digest; no row was read."


@dataclass(frozen=True, slots=True)
class Section:
    """One section; a status in words, lines, then tables."""

    name: str
    status: str
    lines: tuple[str, ...]
    grids: tuple[Grid, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    verdict: str
    summary: str
    files: tuple[str, ...]
    causes: tuple[str, ...]
    thresholds: Grid | None
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def page_of(document: Json, limit: int, token_a: ShowToken = str, token_b: ShowToken = str) -> Page:
    """Lay out a document of schema `dflash.diff/1`.

    Args:
        limit: rows of tables that could be endless.
        token_a, token_b: shows a token id of either side.
    """
    sections = document["sections"]
    parts: dict[str, Callable[[Json], Part]] = {
        "identity": lambda section: _identity(section, limit),
        "schema": _schema,
        "requests": lambda section: _requests(section, document["asked"]["on"]),
        "tokens": lambda section: _tokens(section, token_a, token_b),
        "drafts": _drafts,
        "probabilities": diff_numbers.probabilities,
        "features": diff_numbers.features,
        "decisions": _decisions,
        "acceptance": diff_numbers.acceptance,
        "timing": diff_numbers.timing,
    }
    laid = []
    for name, lay in parts.items():
        section = sections[name]
        if section is not None:
            equal = document["read"] == "digests" and name in _FROM_ROWS
            lines, grids = ([_EQUAL], []) if equal else lay(section)
            columns = _columns(section.get("columns", []), limit)
            laid.append(Section(name, section.get("status", ""), tuple(lines), (*grids, *columns)))
    return Page(
        document["verdict"],
        document["summary"],
        tuple(f"{side.upper()}: {_source(document[side])}" for side in ("a", "b")),
        tuple(document["causes"]),
        _thresholds(document["thresholds"]),
        tuple(laid),
        tuple(f"{name}: {meaning}" for name, meaning in document["definitions"].items()),
    )


def _source(run: Json) -> str:
    paths = ", ".join(file["path"] for file in run["files"])
    drafters = " + ".join(run["drafters"]) or "no drafter"
    ended = "" if run["run_status"] == ["finished"] else f", {' and '.join(run['run_status'])}"
    told = f"{counted(run['requests'], 'request')}, {counted(run['rows'], 'row')}"
    return f"{paths} ({run['target']} with {drafters}; {told}{ended})"


def _thresholds(judged: Sequence[Json]) -> Grid | None:
    rows = tuple(("FAILED" if item["failed"] else "held", item["threshold"], item["why"]) for item in judged)
    return Grid(("", "threshold", "why"), rows) if rows else None


def _identity(section: Json, limit: int) -> Part:
    rows = [(item["key"], cell(item["a"]), cell(item["b"])) for item in section["header"]]
    more = [f"{len(rows) - limit} more differences in --json."] if len(rows) > max(limit, 1) * 4 else []
    grids = [Grid(("header", "A", "B"), tuple(rows[: max(limit, 1) * 4]))] if rows else []
    if section["requests"]:
        infos = tuple(
            (key, str(item["requests"]), item["request"], cell(item["a"]), cell(item["b"]))
            for key, item in section["requests"].items()
        )
        grids.append(Grid(("request setting", "requests", "such as", "A", "B"), infos))
    return (more if grids else ["The headers agree."]), grids


def _schema(section: Json) -> Part:
    lines = [f"{section['compared']} columns compared."]
    for name, what in (
        ("ignored", "Ignored"),
        ("volatile", "Volatile, left out"),
        ("only_a", "Only in A"),
        ("only_b", "Only in B"),
    ):
        if section[name]:
            lines.append(f"{what}: {', '.join(section[name])}.")
    rows = tuple((item["column"], item["a"], item["b"]) for item in section["other_types"])
    return lines, [Grid(("column", "type in A", "type in B"), rows)] if rows else []


def _requests(section: Json, on: str) -> Part:
    lines = [f"{section['aligned']} aligned by the {section['aligned_by']} of their prompts."]
    for side in ("a", "b"):
        if section[f"only_{side}"]:
            listed = ", ".join(section[f"listed_{side}"])
            lines.append(f"{section[f'only_{side}']} only in {side.upper()}: {listed}.")
    if section["renamed"]:
        lines.append(f"{section['renamed']} under another name.")
    rows = section["rows"]
    if on == "rounds" and (rows["a"]["other_anchor"] or rows["b"]["other_anchor"]):
        lines.append("Rounds stand at other anchors: --on anchors pairs them by position.")
    names = ("total", "compared", "after_divergence", "other_anchor", "alone")
    grid = Grid(
        ("live and dense rows", "all", "compared", "after a difference", "at another anchor", "alone"),
        tuple((side.upper(), *(str(rows[side][name]) for name in names)) for side in ("a", "b")),
    )
    return lines, [grid]


def _tokens(section: Json, token_a: ShowToken, token_b: ShowToken) -> Part:
    lines = [
        f"{section['same']} of {section['requests']} requests have the same tokens; "
        f"{section['shared_tokens']} of {section['output_tokens']} output tokens come before a difference."
    ]
    counts = (
        (section["parted"], f"part, {section['near_ties']} of them at a near-tie"),
        (section["one_is_longer"], "end sooner on one side"),
        (section["other_prompts"], "have other prompt tokens"),
    )
    lines += [f"{count} {what}." for count, what in counts if count]
    rows = tuple(
        (
            item["request_a"],
            str(item["output"]),
            token_a(item["token_a"]),
            token_b(item["token_b"]),
            number(item["gap_a"]),
            number(item["gap_b"]),
            "yes" if item["near_tie"] else "no",
        )
        for item in section["listed"]
    )
    head = ("request", "first differing output token", "A", "B", "margin in A", "margin in B", "near-tie")
    return lines, [Grid(head, rows)] if rows else []


def _drafts(section: Json) -> Part:
    if not section["rows"]:
        return ["No drafts to compare."], []
    return [
        f"{section['same_trees']} of {section['rows']} drafts are the same trees, "
        f"{section['same_first']} of {section['first']} begin with the same token.",
        f"{section['common']} nodes are common, of {section['nodes_a']} in A and {section['nodes_b']} in B.",
    ], []


def _decisions(section: Json) -> Part:
    ends = f"{section['same_end']} of {section['requests']} requests end for the same reason."
    if not section["rounds"]:
        return ["No rounds to compare.", ends], []
    return [
        f"{section['same_path']} of {section['rounds']} rounds accept the same tokens, "
        f"{section['same_bonus']} add the same bonus token; "
        f"B accepts more in {section['more']} and fewer in {section['fewer']}.",
        ends,
    ], []


def _columns(columns: Sequence[Json], limit: int) -> list[Grid]:
    rows = tuple(
        (
            item["column"],
            item["unit"],
            f"{item['changed']} of {item['compared']}",
            str(item["beyond_tolerance"]),
            cell(item["beyond_as_log_p"]),
            number(item["largest_distance"]),
            _example(item["example"]) if limit else "",
        )
        for item in columns
    )
    head = ("column", "per", "changed", "beyond tolerance", "as log p", "largest distance", "such as")
    return [Grid(head, rows)] if rows else []


def _example(example: Json | None) -> str:
    if example is None:
        return ""
    a, b = (signed(v) if isinstance(v, float) else cell(v) for v in (example["a"], example["b"]))
    return f"{example['request_a']} at {example['anchor_position']} ({example['kind']}): {a} → {b}"
