"""`replay --check`: does the recorded policy reproduce every recorded decision, and do the rounds join up?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.control.cut import decide_each
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, ragged_index, segment_max
from dflash.replay.batch import Batch, Part
from dflash.replay.joints import Findings, find
from dflash.replay.recorded import RECORDED_COLUMNS, Recorded
from dflash.replay.state_check import StateCheck
from dflash.replay.steered import recorded_asked
from dflash.replay.twins import twins

CHECK_COLUMNS = (*RECORDED_COLUMNS, "draft_length", "branches", "prompt_tokens", "slot_choice", "round")
LISTED = 10


class Failure(NamedTuple):
    """One recorded value that is not what it must be."""

    what: str
    file: str
    request_id: str
    round: int
    expected: str
    found: str


class Tie(NamedTuple):
    """One round in which a coin lay within rounding of its threshold."""

    file: str
    request_id: str
    round: int
    reproduced: bool


@dataclass(slots=True)
class Check:
    """Holds the recorded decisions of a run against its recorded rule.

    Attributes:
        policy: the recorded one.
        states: checks those of an adaptive control.
        rounds: live rounds seen.
        requests: requests seen.
        failures: how many, by what is wrong.
        listed: the first `LISTED` of each kind.
        ties: coin ties; a round that one of them decides the other way is no failure.
        eos: tokens that ended a request.
        dense_near_ties: live rows whose dense row differs where rounding may have decided.
    """

    policy: Policy
    states: StateCheck | None = None
    rounds: int = 0
    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    listed: list[Failure] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    eos: set[int] = field(default_factory=set)
    dense_near_ties: int = 0

    def add(self, batch: Batch, rounds: Rounds, parts: Sequence[Part]) -> None:
        """Check one row group; `rounds` and `parts` are the batch's own, uncut."""
        recorded = Recorded.of(batch.table, rounds)
        self.rounds += int(batch.live.sum())
        self.requests += len(batch.requests)
        for part in parts:
            self._decisions(batch, rounds, recorded, part)
        self._report(batch, _shapes(batch, rounds))
        if self.states is not None:
            self.states.add(batch, rounds)
        for findings in find(batch, rounds, recorded, self.eos):
            self._report(batch, findings)

    def add_dense(self, file: DraftFile, recorded: Policy) -> None:
        """Check that dense rows at live anchors are the live rows, on the nodes that both have."""
        for found in twins(file, recorded):
            self.dense_near_ties += found.near
            expected = ["the draft and the choices of the live row"] * len(found.rows)
            self._report(found.batch, Findings("dense row", found.rows, expected, ["others"] * len(expected)))

    def close(self) -> None:
        """Check what only all rows together tell."""
        wrong = [] if self.states is None else self.states.wrong()
        if wrong:
            self.failures["control_state"] += len(wrong)
            for file, request_id, round_, expected, found in wrong[:LISTED]:
                self.listed.append(Failure("control_state", file, request_id, round_, expected, found))

    def _decisions(self, batch: Batch, rounds: Rounds, recorded: Recorded, part: Part) -> None:
        if self.policy.control.moves_threshold:
            t = recorded_asked(batch).t[part.rows]
            decision = decide_each(self.policy.rule, part.rounds, t, part.context)
        else:
            decision = self.policy.rule.decide(part.rounds, part.context)
        nodes = ragged_index(rounds.node_offsets, part.rows)
        differs = decision.accepted != recorded.on_path[nodes]
        path = segment_max(differs.astype(np.int64), part.rounds.node_offsets, 0) > 0
        token = (decision.bonus != recorded.bonus[part.rows]) | (decision.bonus < 0)
        for row in np.flatnonzero(decision.coin_tie):
            self.ties.append(Tie(*self._place(batch, part.rows[row]), not (path[row] or token[row])))
        wrong = np.flatnonzero(path & ~decision.coin_tie)
        rows = part.rows[wrong]
        expected = [decision.path(row) for row in wrong[:LISTED]]
        found = [recorded.path(row) for row in rows[:LISTED]]
        self._report(batch, Findings("accepted_nodes", rows, expected, found))
        wrong = np.flatnonzero(token & ~path & ~decision.coin_tie)
        rows = part.rows[wrong]
        tokens = ["a recorded token" if token < 0 else token for token in decision.bonus[wrong].tolist()]
        self._report(batch, Findings("bonus_token", rows, tokens, recorded.bonus[rows].tolist()))

    def _report(self, batch: Batch, findings: Findings) -> None:
        if not len(findings.rows):
            return
        self.failures[findings.what] += len(findings.rows)
        listed = sum(failure.what == findings.what for failure in self.listed)
        rows = findings.rows[: max(0, LISTED - listed)]
        for row, expected, found in zip(rows, findings.expected, findings.found, strict=False):
            self.listed.append(Failure(findings.what, *self._place(batch, row), str(expected), str(found)))

    def _place(self, batch: Batch, row: int) -> tuple[str, str, int]:
        request = batch.requests[batch.owner[row]].request_id
        return str(batch.file.path), request, int(batch.table["round"][int(row)].as_py())


def _shapes(batch: Batch, rounds: Rounds) -> Findings:
    """Live trees that are larger than the shape which their row says."""
    depth = segment_max(rounds.node_depth, rounds.node_offsets, 0)
    leaves = _leaves(rounds)
    length, branches = (_ints(batch, name) for name in ("draft_length", "branches"))
    rows = np.flatnonzero(batch.live & ((depth > length) | (leaves > branches)))
    expected = [f"at most {length[row]} deep, {branches[row]} branches" for row in rows[:LISTED]]
    found = [f"{depth[row]} deep, {leaves[row]} branches" for row in rows[:LISTED]]
    return Findings("shape", rows, expected, found)


def _leaves(rounds: Rounds) -> I64:
    parent = rounds.parent_node
    inner: Bool = np.zeros(len(parent), dtype=bool)
    inner[parent[parent >= 0]] = True
    return np.bincount(rounds.node_round[~inner], minlength=len(rounds))


def _ints(batch: Batch, name: str) -> I64:
    column = batch.table[name].combine_chunks().fill_null(-1)
    return np.asarray(column.to_numpy(zero_copy_only=False).astype(np.int64))
