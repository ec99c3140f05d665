"""The sections of a comparison that are all numbers: probabilities, features, acceptance, timing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash.cli.diff_grid import Grid, interval, number, percentage, signed
from dflash.cli.policy_cell import counted

Json = Mapping[str, Any]


def probabilities(section: Json) -> tuple[list[str], list[Grid]]:
    """The rows that llama.cpp prints: KL, change of p, same top-1."""
    kl, back, change, top1 = (section[name] for name in ("kl", "kl_reverse", "change_of_p", "same_top1"))
    if not (kl["count"] or change["count"] or top1["count"]):
        return ["No slot to compare."], []
    lines = [
        f"Same top-1: {percentage(top1['share'])} ± {percentage(top1['standard_error'])} "
        f"({top1['same']} of {top1['count']} slots).",
        f"RMS Δp: {percentage(change['rms'])} ± {percentage(change['rms_standard_error'])}; "
        f"{change['count']} chosen tokens, {change['unlisted']} not listed by the other side.",
    ]
    columns = {"KL(A‖B)": (kl, number), "KL(B‖A)": (back, number), "Δp": (change, percentage)}
    return lines, [_spreads(columns)]


def features(section: Json) -> tuple[list[str], list[Grid]]:
    """Cosine and norm of fingerprints."""
    if section["not_compared"]:
        return [f"Not compared: {section['not_compared']}."], []
    if not section["cosine"]["count"]:
        return ["No token to compare."], []
    columns = {"cosine": (section["cosine"], number), "norm of B / A": (section["norm_ratio"], number)}
    said = f"{section['cosine']['count']} tokens; cosine and norm are those of their fingerprints."
    return [said], [_spreads(columns)]


def acceptance(section: Json) -> tuple[list[str], list[Grid]]:
    """tau and acceptance by position, with intervals."""
    rounds = section["rounds"]
    over = f"intervals over {section['requests']} requests"
    if section["requests"] < 2:
        over = "no intervals, which are drawn over requests with rounds in both"
    lines = [f"{counted(rounds['a'], 'live round')} in A, {rounds['b']} in B; {over}."]
    names = ["tau", *(f"position {index + 1}" for index in range(len(section["positions"])))]
    rows = tuple(
        (
            name,
            number(shift["a"]),
            interval(shift["interval_a"]),
            number(shift["b"]),
            interval(shift["interval_b"]),
            signed(shift["difference"]),
            interval(shift["difference_interval"]),
        )
        for name, shift in zip(names, [section["tau"], *section["positions"]], strict=True)
    )
    return lines, [Grid(("accepted", "A", "95 %", "B", "95 %", "B - A", "95 %"), rows)]


def timing(section: Json) -> tuple[list[str], list[Grid]]:
    """Times of live rounds."""
    rows = []
    for name, pair in section["timers"].items():
        for side in ("a", "b"):
            spread, percentiles = pair[side], pair[side]["percentiles"]
            rows.append(
                (
                    f"{name} {side.upper()}",
                    number(spread["mean"]),
                    number(spread["standard_error"]),
                    *(number(percentiles[name]) for name in ("50", "90", "99", "100")),
                    number(pair["ratio"]) if side == "b" else "",
                )
            )
    head = ("microseconds", "mean", "±", "median", "90 %", "99 %", "maximum", "B / A")
    return [], [Grid(head, tuple(rows))]


def _spreads(columns: Mapping[str, tuple[Json, Any]]) -> Grid:
    """Mean and percentiles, a column each; sides with other percentiles leave cells empty."""
    percentiles = {name for spread, _ in columns.values() for name in spread["percentiles"]}
    rows = [("mean", *(f"{show(s['mean'])} ± {show(s['standard_error'])}" for s, show in columns.values()))]
    for name in sorted(percentiles, key=float, reverse=True):
        label = {"100": "maximum", "50": "median", "0": "minimum"}.get(name, f"{name} %")
        shown = (
            show(spread["percentiles"][name]) if name in spread["percentiles"] else ""
            for spread, show in columns.values()
        )
        rows.append((label, *shown))
    return Grid(("", *columns), tuple(rows))
