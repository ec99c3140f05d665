"""The table of `dflash bench kernels`: one line a kernel and shape, losses included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OURS = ("dflash fast", "dflash greedy")
HEADINGS = (
    "kernel",
    "shape",
    "us",
    "MB",
    "of ceiling",
    "target us",
    "of target",
    "exact us",
    "fastest peer",
    "peer us",
    "ratio",
)


def _groups(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["shape"]), []).append(row)
    return groups


def _line(group: list[Mapping[str, Any]], read_tbs: float) -> tuple[str, ...]:
    ours = next(row for row in group if row["name"] in OURS)
    exact = [row["median_us"] for row in group if row["name"] == "dflash replay-exact"]
    peers = [
        row
        for row in group
        if not row["name"].startswith("dflash")
        and row["median_us"]
        and (row["takes_tree_mask"] or row["kernel"] == "block")
    ]
    best = min(peers, key=lambda row: row["median_us"], default=None)
    us, target = ours["median_us"], ours["target_us"]
    share = ours["bytes"] / us / 1e6 / read_tbs
    return (
        ours["kernel"], ours["shape"], f"{us:.2f}",
        f"{ours['bytes'] / 1e6:.1f}" if ours["bytes"] else "-", f"{share:.0%}" if ours["bytes"] else "-",
        f"{target:g}" if target else "-", f"{us / target:.2f}x" if target else "-",
        f"{exact[0]:.2f}" if exact else "-",
        best["name"] if best else "-", f"{best['median_us']:.2f}" if best else "-",
        f"{us / best['median_us']:.2f}x" if best else "-",
    )  # fmt: skip


def table_lines(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Headings and one line a kernel and shape.

    Args:
        results: the document that `dflash bench kernels` writes.
    """
    read_tbs = results["ceilings"]["read_tbs"]
    return [HEADINGS, *(_line(group, read_tbs) for group in _groups(results["rows"]).values())]


def as_text(results: Mapping[str, Any]) -> str:
    """The table in columns."""
    lines = table_lines(results)
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_markdown(results: Mapping[str, Any]) -> str:
    """The table for a README."""
    head, *body = table_lines(results)
    rule = "|".join(["---"] * len(head))
    return "\n".join(f"|{'|'.join(line)}|" for line in (head, tuple(rule.split("|")), *body))
