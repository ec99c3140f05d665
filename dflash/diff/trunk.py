"""The tokens that requests committed, and where those of two files part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.diff.flat import Block
from dflash.diff.matching import equal_lists, spread_rows
from dflash.policy.noise import I64
from dflash.policy.topology import Bool

ENDLESS = 2**40


@dataclass(frozen=True, slots=True)
class Emission:
    """Committed tokens of a block, in order.

    Attributes:
        token: all of them.
        row_offsets: `[rows + 1]` where each row's tokens begin.
        starts, counts: `[requests]` where each request's tokens begin, and how many it has.
    """

    token: I64
    row_offsets: I64
    starts: I64
    counts: I64

    @classmethod
    def of(cls, block: Block) -> Emission:
        """Take accepted path and bonus token of every row, as far as they were kept."""
        path, node_token = block.flat("accepted_nodes"), block.flat("node_token")
        accepted = np.maximum(path.lengths, 0)
        kept = np.where(path.lengths < 0, 0, np.clip(block.scalar("emitted", 0), 0, accepted + 1))
        row, place = spread_rows(kept)
        node = path.take(row, place)
        drafted = node_token.take(row, np.maximum(node.value, 0).astype(np.int64)).value
        token = np.where(place < accepted[row], drafted, block.scalar("bonus_token")[row])
        offsets = np.concatenate(([0], np.cumsum(kept)))
        ends = np.append(block.starts[1:], block.table.num_rows)
        starts = offsets[block.starts]
        return cls(token.astype(np.int64), offsets, starts, offsets[ends] - starts)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the outputs of equal prompts part.

    Attributes:
        prompts: `[R]` whether the prompts are the same tokens.
        shared: `[R]` output tokens before the first difference, or before the shorter one ends.
        differs: `[R]` whether a token differs, prompts being equal.
        ended: `[R]` whether one output is longer and nothing differs before.
        limit: `[R]` anchors below this position have the same context on both sides.
    """

    prompts: Bool
    shared: I64
    differs: Bool
    ended: Bool
    limit: I64


def part(a: Block, b: Block, left: Emission, right: Emission) -> Parting:
    """Find the first difference of every request."""
    prompts = equal_lists(a.flat("prompt_tokens"), a.starts, b.flat("prompt_tokens"), b.starts)
    anchors = [side.scalar("anchor_position")[side.starts] for side in (a, b)]
    prompts &= anchors[0] == anchors[1]
    common = np.minimum(left.counts, right.counts)
    request, place = spread_rows(common)
    odd = left.token[left.starts[request] + place] != right.token[right.starts[request] + place]
    shared = common.copy()
    np.minimum.at(shared, request[odd], place[odd])
    differs = prompts & (shared < common)
    limit = np.where(differs, anchors[0] + 1 + shared, ENDLESS)
    return Parting(
        prompts=prompts,
        shared=np.where(prompts, shared, 0),
        differs=differs,
        ended=prompts & ~differs & (left.counts != right.counts),
        limit=np.where(prompts, limit, -1),
    )


def sources(block: Block, emission: Emission, requests: I64, places: I64) -> tuple[I64, I64]:
    """Return the row and the slot that each output token was taken from."""
    index = emission.starts[requests] + places
    row = np.searchsorted(emission.row_offsets, index, side="right") - 1
    inside = index - emission.row_offsets[row]
    node = block.flat("accepted_nodes").take(row, np.maximum(inside - 1, 0)).value
    return row, np.where(inside == 0, 0, node + 1)
