"""How the rounds of a request must join up: what is kept, where the next anchor stands, how it all ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.policy.noise import I64, request_key, rng_key_hex
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Batch
from dflash.replay.recorded import Recorded
from dflash.replay.requests import Request


class Findings(NamedTuple):
    """Rows with the same fault; `expected` and `found` tell of the first of them, at least."""

    what: str
    rows: I64
    expected: Sequence[Any]
    found: Sequence[Any]


def find(batch: Batch, rounds: Rounds, recorded: Recorded, eos: set[int]) -> Iterator[Findings]:
    """Check everything beside the decisions.

    Args:
        rounds: all rows of the batch, with `slot_choice`.
        eos: tokens that ended a request so far; grows.
    """
    yield from _kept(batch, recorded)
    yield from _anchors(batch, recorded)
    yield _first_tokens(batch, rounds, recorded)
    yield _endings(batch, recorded)
    yield _past_eos(recorded, eos)
    yield from _requests(batch, recorded)


def _kept(batch: Batch, recorded: Recorded) -> Iterator[Findings]:
    """All tokens are kept unless something cut them."""
    whole = recorded.count + 1
    uncut = recorded.truncated_by == "none"
    fewest = np.where(uncut, whole, np.where(recorded.truncated_by == "interrupted", 0, 1))
    rows = np.flatnonzero((recorded.emitted < fewest) | (recorded.emitted > whole))
    expected = [f"{fewest[row]} to {whole[row]} tokens ({recorded.truncated_by[row]})" for row in rows]
    yield Findings("emitted", rows, expected, recorded.emitted[rows].tolist())


def _anchors(batch: Batch, recorded: Recorded) -> Iterator[Findings]:
    """The next anchor is the last token kept."""
    position, token = (
        batch.table[name].combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
        for name in ("anchor_position", "anchor_token")
    )
    before = np.flatnonzero(batch.owner[1:] == batch.owner[:-1])
    after = before + 1
    expected = position[before] + recorded.emitted[before]
    wrong = np.flatnonzero(position[after] != expected)
    yield Findings("anchor_position", after[wrong], expected[wrong].tolist(), position[after[wrong]].tolist())
    wrong = np.flatnonzero(token[after] != recorded.last_token[before])
    last = recorded.last_token[before[wrong]]
    yield Findings("anchor_token", after[wrong], last.tolist(), token[after[wrong]].tolist())
    wrong = before[recorded.truncated_by[before] != "none"]
    found = recorded.truncated_by[wrong].tolist()
    yield Findings("truncated_by", wrong, ["none, since more rounds follow"] * len(wrong), found)


def _first_tokens(batch: Batch, rounds: Rounds, recorded: Recorded) -> Findings:
    """A prefill emits the target's choice."""
    rows = np.flatnonzero(~batch.live)
    choice = rounds["slot_choice"][rounds.root_slot[rows]]
    wrong = np.flatnonzero(recorded.bonus[rows] != choice)
    return Findings("first token", rows[wrong], choice[wrong].tolist(), recorded.bonus[rows[wrong]].tolist())


def _endings(batch: Batch, recorded: Recorded) -> Findings:
    """The last round of a request says why the request ended, unless the run was interrupted."""
    last = np.flatnonzero(np.append(batch.owner[1:] != batch.owner[:-1], True)[: len(batch.owner)])
    rows = last[recorded.truncated_by[last] == "none"] if batch.file.run_status == "finished" else last[:0]
    expected = ["a reason, since no round follows"] * len(rows)
    return Findings("truncated_by", rows, expected, ["none"] * len(rows))


def _past_eos(recorded: Recorded, eos: set[int]) -> Findings:
    """A token that ends a request is the last one kept."""
    eos.update(recorded.last_token[recorded.truncated_by == "eos"].tolist())
    row = np.repeat(np.arange(len(recorded.count)), recorded.count)
    place = np.arange(len(row)) - recorded.path_offsets[row]
    ends = (place == recorded.emitted[row] - 1) & (recorded.truncated_by[row] != "none")
    ending = np.array(sorted(eos), dtype=np.int64)
    passed = np.isin(recorded.path_token, ending) & (place < recorded.emitted[row]) & ~ends
    bonus = np.isin(recorded.bonus, ending) & (recorded.emitted > recorded.count)
    wrong = np.union1d(row[passed], np.flatnonzero(bonus & (recorded.truncated_by == "none")))
    return Findings("eos", wrong, ["the end of the request"] * len(wrong), ["more tokens"] * len(wrong))


def _requests(batch: Batch, recorded: Recorded) -> Iterator[Findings]:
    """The key follows from seed, prompt and ordinal; the prompt ends at the first anchor; limits hold."""
    starts = np.flatnonzero(np.append(True, batch.owner[1:] != batch.owner[:-1])[: len(batch.owner)])
    kept = np.bincount(batch.owner, weights=recorded.emitted, minlength=len(batch.requests)).astype(np.int64)
    heads = batch.table.select(["prompt_tokens", "anchor_position", "anchor_token"]).take(starts).to_pylist()
    for index, (request, head) in enumerate(zip(batch.requests, heads, strict=True)):
        row = starts[index : index + 1]
        prompt = head["prompt_tokens"] or []
        key = rng_key_hex(request_key(_seed(batch, request), prompt, int(request.info.get("ordinal", 0))))
        if request.info["rng_key"] != key:
            yield Findings("rng_key", row, [key], [request.info["rng_key"]])
        anchor = (head["anchor_position"], head["anchor_token"])
        if prompt and anchor != (len(prompt) - 1, prompt[-1]):
            yield Findings("prompt", row, [(len(prompt) - 1, prompt[-1])], [anchor])
        limit = request.info.get("max_new_tokens")
        if limit is not None and kept[index] > int(limit):
            yield Findings("length", row, [f"at most {limit} tokens"], [int(kept[index])])


def _seed(batch: Batch, request: Request) -> int:
    return int(request.info.get("seed", batch.file.header.seed))
