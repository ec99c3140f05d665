"""Rounds as text: each tree drawn, the accepted path marked and coloured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from dflash.cli.output import data_console
from dflash.cli.token_text import Tokens
from dflash.draftfile.summary import Kind

Row = Mapping[str, Any]
ACCEPTED, OTHER = "bold green", "dim"


def write_text(rows: Iterable[Row], tokens: Tokens) -> None:
    """Prints every row; a line of its own where a request begins."""
    console, request = data_console(), None
    for row in rows:
        if row["request_id"] != request:
            request = row["request_id"]
            console.print(Text(f"request {request}", style="bold"), soft_wrap=True)
        write_row(row, tokens, console)


def write_row(row: Row, tokens: Tokens, console: Console) -> None:
    """Prints one row as a line and its tree."""
    if row["kind"] == Kind.PREFILL and row["prompt_text"] is not None:
        console.print(Text(f"  prompt {row['prompt_text']!r}"), soft_wrap=True)
    tree = Tree(Text(headline(row, tokens)), guide_style=OTHER)
    _grow(row, tokens, tree)
    console.print(tree, soft_wrap=True)


def headline(row: Row, tokens: Tokens) -> str:
    """What the row is, where, and what came of it."""
    at = f"at {row['anchor_position']}, anchor {tokens(row['anchor_token'])}"
    match row["kind"]:
        case Kind.PREFILL:
            size = len(row["prompt_tokens"] or [])
            return f"prefill of {size} tokens {at}: first token {_outcome(row, tokens)}"
        case Kind.LIVE:
            accepted, nodes = len(row["accepted_nodes"] or []), len(row["node_token"] or [])
            return f"round {row['round']} {at}: {accepted} of {nodes} accepted, bonus {_outcome(row, tokens)}"
        case Kind.DENSE:
            return f"dense {at}{', off trajectory' if row['off_trajectory'] else ''}"
    return f"prompt features {at}"


def _outcome(row: Row, tokens: Tokens) -> str:
    cut = row["truncated_by"]
    ending = f", {row['emitted']} emitted, cut by {cut}" if cut not in (None, "none") else ""
    return ("unknown" if row["bonus_token"] is None else tokens(row["bonus_token"])) + ending


def _grow(row: Row, tokens: Tokens, root: Tree) -> None:
    accepted = set(row["accepted_nodes"] or [])
    parents = row["node_parent"] or [-1] * len(row["node_token"] or [])
    branches: list[Tree] = []
    for node, token in enumerate(row["node_token"] or []):
        mark, style = ("* ", ACCEPTED) if node in accepted else ("  ", OTHER)
        label = Text(f"{mark}{tokens(token)}{_odds(row, node)}", style=style)
        above = root if parents[node] < 0 else branches[parents[node]]
        branches.append(above.add(label, guide_style=OTHER))


def _odds(row: Row, node: int) -> str:
    """log p and log q of a node, as far as known."""
    known = {name: row[f"node_log{name}"][node] for name in "pq" if row[f"node_log{name}"] is not None}
    return "".join(f"  log {name} {value:.3f}" for name, value in known.items() if value is not None)
