"""Rounds of a live run recounted from its tokens, and rounds of a walk, ready to be held side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import draft_runs

from dflash.draftfile.run import open_run
from dflash.policy.registry import parse_policy
from dflash.replay.batch import columns_of
from dflash.replay.dense import dense_batches
from dflash.replay.walk import WALK_COLUMNS, marked
from dflash.replay.walks import walker

SHAPES = ("match:length=2", "match:branches=1", "match:confidence=0.55", "match:length=0")
GREEDY = (*SHAPES, "threshold:t=0.7", "greedy", "speculative:length=4", "threshold:t=0.7,length=2")
LARGEST = {"length": 5, "branches": 3, "features": "none"}


class Round(NamedTuple):
    """Where a round begins, how many drafts it accepts, how many tokens it keeps."""

    anchor: int
    accepted: int
    kept: int


class Walk(NamedTuple):
    """Rounds by request, the first listed near-tie of each, where one left its trunk, and all near-ties."""

    rounds: dict[str, list[Round]]
    tie: dict[str, int]
    left: dict[str, int]
    ties: int


def live_rounds(path: Path, policy: str, temperature: float) -> dict[str, list[Round]]:
    """Count what a live run accepted: the deepest path whose every node passes the rule.

    A round that was not cut short must have kept just that path and one more token.
    """
    found: dict[str, list[Round]] = {}
    for row in draft_runs.rows(path):
        if row["kind"] == 0:
            accepted = deepest(row, passes(policy, temperature))
            kept = row["emitted"]
            cut = row["truncated_by"] != "none"
            assert kept == accepted + 1 or (cut and kept <= accepted), row
            found.setdefault(row["request_id"], []).append(Round(row["anchor_position"], accepted, kept))
        elif row["kind"] == 2:
            found.setdefault(row["request_id"], [])
    return found


def passes(policy: str, temperature: float) -> Callable[[dict[str, Any], int], bool]:
    """The rule in one line: on tokens, or on the target's probability."""
    lowest = math.log(0.7)

    def likely(row: dict[str, Any], node: int) -> bool:
        if temperature > 0:
            return row["node_logp"][node] >= lowest
        return row["node_target_logit"][node] - row["slot_lse"][row["node_parent"][node] + 1] >= lowest

    def chosen(row: dict[str, Any], node: int) -> bool:
        return row["node_token"][node] == row["slot_choice"][row["node_parent"][node] + 1]

    return likely if policy.startswith("threshold:t=0.7") else chosen


def deepest(row: dict[str, Any], passed: Callable[[dict[str, Any], int], bool]) -> int:
    """Length of the longest path all of whose nodes pass."""
    depth: list[int] = []
    for node, parent in enumerate(row["node_parent"]):
        above = 0 if parent < 0 else depth[parent]
        depth.append(above + 1 if above >= 0 and passed(row, node) else -1)
    return max([0, *depth])


def walked(path: Path, text: str) -> Walk:
    """Walk a dense file under a policy."""
    policy = parse_policy(text)
    found = Walk({}, {}, {}, 0)
    ties = 0
    files = open_run([path]).files
    course = walker(policy, files[0])
    for file in files:
        columns = {*columns_of([policy], file), *WALK_COLUMNS}
        for dense in dense_batches(file, columns):
            for request in dense.batch.requests:
                found.rounds[request.request_id] = []
            parts = [marked(dense, part) for part in dense.batch.parts(dense.batch.rounds(columns))]
            for result in course.walk(dense, parts, file.header.tie_tolerance, True):
                ties += len(result.near_ties)
                for tie in result.near_ties:
                    found.tie.setdefault(tie.request_id, tie.anchor_position)
                for place, owner in enumerate(result.owner):
                    name = dense.batch.requests[owner].request_id
                    anchor = int(result.rounds.anchor_position[place])
                    accepted, kept = int(result.decision.accepted_count[place]), int(result.kept[place])
                    found.rounds[name].append(Round(anchor, accepted, kept))
                    if result.left_trunk[place]:
                        found.left[name] = anchor
    return found._replace(ties=ties)


def same_rounds(walk: Walk, live: dict[str, list[Round]]) -> int:
    """Hold a walk against a live run, up to each request's first listed near-tie; rounds compared."""
    assert walk.rounds.keys() == live.keys()
    compared = 0
    for name, rounds in walk.rounds.items():
        end = walk.tie.get(name, math.inf)
        mine = [item for item in rounds if item.anchor < end]
        theirs = [item for item in live[name] if item.anchor < end]
        assert mine == theirs, name
        compared += len(mine)
    return compared


def hold(
    target: Any,
    folder: Path,
    drafter: str,
    asked: Sequence[str],
    temperature: float,
    policies: Sequence[str],
    **given: Any,
) -> tuple[int, int, int]:
    """Record dense once under `match`, then walk and run that and each policy.

    Returns:
        Rounds compared, near-ties listed, nodes accepted live.
    """
    common = LARGEST | {"drafter": drafter, "temperature": temperature} | given
    dense = draft_runs.record(target, asked, folder / "dense.parquet", dense=True, **common)
    texts = draft_runs.trunks(draft_runs.rows(dense))
    rounds = ties = accepted = 0
    for number, policy in enumerate(("match", *policies)):
        path = draft_runs.record(target, asked, folder / f"live{number}.parquet", policy=policy, **common)
        walk, live = walked(dense, policy), live_rounds(path, policy, temperature)
        assert not walk.left
        rounds += same_rounds(walk, live)
        ties += walk.ties
        accepted += sum(item.accepted for items in live.values() for item in items)
        for name, text in draft_runs.trunks(draft_runs.rows(path)).items():
            assert name in walk.tie or text == texts[name]
    print(
        f"{drafter.partition(':')[0]} T={temperature}: {len(asked)} prompts, {1 + len(policies)} policies, "
        f"{rounds} rounds equal, {accepted} accepted, {ties} near-ties ({ties / max(rounds, 1):.2%})"
    )
    return rounds, ties, accepted
