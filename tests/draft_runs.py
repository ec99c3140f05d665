"""Recordings in one call, and what a few lines without the package count in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.policy.registry import parse_policy
from dflash.target.sampling import Sampling

THINGS = ("a rainbow", "the moon", "ab ab ab", "1 2 3 4", "漢字 🌈", "a limerick", "one two one two")
PROMPTS = tuple(f"{word} {thing}?" for word in ("What is", "Say", "Why", "Say it twice:") for thing in THINGS)


def prompts(count: int) -> list[str]:
    """Different short prompts."""
    return [f"{PROMPTS[number % len(PROMPTS)]} {number}" for number in range(count)]


def session(target: Any, output: Path, **given: Any) -> Session:
    """A recording session; greedy n-gram drafts of 5 x 3 unless told otherwise."""
    sampling = Sampling(given.pop("temperature", 0.0), given.pop("top_k", 0), given.pop("top_p", 1.0))
    seed, tokens = given.pop("seed", 7), given.pop("max_new_tokens", 40)
    chosen = {"drafter": "ngram", "length": 5, "branches": 3} | given
    policy = parse_policy(chosen.pop("policy", "match"))
    defaults = Defaults(sampling, seed, tokens)
    return Session(target, RecordSettings(output=output, policy=policy, defaults=defaults, **chosen))


def record(target: Any, asked: Any, output: Path, **given: Any) -> Path:
    """Decode prompts (texts or `Prompt`s) and leave a draft file."""
    run = session(target, output, **given)
    entries = with_ids(text_prompt(prompt) if isinstance(prompt, str) else prompt for prompt in asked)
    run.record(run.conversations(entries, check=True))
    return output


def rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, read by pyarrow alone."""
    return pq.read_table(path).to_pylist()


def trunks(table: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Prompt and committed tokens of every request."""
    found: dict[str, list[int]] = {}
    for row in table:
        if row["kind"] == 2:
            found[row["request_id"]] = list(row["prompt_tokens"])
        if row["kind"] in (0, 2):
            path = [row["node_token"][node] for node in row["accepted_nodes"]]
            found[row["request_id"]] += [*path, row["bonus_token"]][: row["emitted"]]
    return found


def depths(parents: list[int]) -> list[int]:
    """Depth of every node; children of the anchor have 1."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
