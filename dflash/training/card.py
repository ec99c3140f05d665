"""A drafter's card: what it was trained for, from what, for how long, and how often it is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.training.walk import Tally

CARD = "card.json"


def tally_facts(tally: Tally) -> dict[str, Any]:
    """Of a walk: tau (accepted + 1 a live round), rounds, and the share of rounds that accepted n drafts."""
    return {"tau": tally.tau, "rounds": tally.rounds, "accepted_at_least": tally.marginal}


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write `card.json`, and the same as README.md for people."""
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card_text(card), encoding="utf-8")


def card_text(card: Mapping[str, Any]) -> str:
    """A card as Markdown."""
    target, device = card["target"], card["device"]
    seconds = ", ".join(f"{what} {spent:.0f} s" for what, spent in card["seconds"].items())
    lines = [
        f"# A {card['family']} drafter for {target['name']}",
        "",
        f"- **Target**: {target['name']}, weights {target['weights_digest'][:16]}, {target['dtype']}",
        f"- **Drafter**: {card['parameters']:,} parameters, {card['drafts']} drafts a block, "
        f"hidden states {', '.join(map(str, card['taps']))}",
        f"- **Data**: {card['data']}",
        f"- **Steps**: {card['steps']:,}, seed {card['seed']}",
        f"- **Time** on {device}: {seconds}",
        "",
        "Greedy walk over answers to first turns, tau = accepted + 1 a live round:",
        "",
        "| answers to | answers | tau | rounds |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {facts['answers']} | {_number(facts['tau'])} | {facts['rounds']:,} |"
        for name, facts in card["tau"].items()
    ]
    lines += ["", f"Made by `{card['command']}`.", *_given(card)]
    return "\n".join([*lines, ""])


def _given(card: Mapping[str, Any]) -> list[str]:
    """The files that the command read."""
    files = [card["inputs"][name] for name in ("prompts", "evaluate") if name in card["inputs"]]
    return (
        ["", *(f"- `{file['name']}`: sha256 {file['sha256']}{_origin(file)}" for file in files)]
        if files
        else []
    )


def _origin(file: Mapping[str, str]) -> str:
    return f", by `{file['made_by']}`" if "made_by" in file else ""


def _number(tau: float | None) -> str:
    return "-" if tau is None else f"{tau:.3f}"
