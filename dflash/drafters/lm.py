"""Draft with a language model of the target's tokenizer, level by level: a chain, or a tree of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dflash.drafters.base import SCORED_CUTS, Anchor, Drafter, DraftShape, Proposal, entry
from dflash.drafters.drawing import Drawing, Growth
from dflash.policy.context import DraftSampling
from dflash.target.model import TrunkModel
from dflash.target.scratch import LaneRows

_CHUNK = 128


@dataclass(slots=True)
class _Draft:
    """A tree in the making; `rows` holds the scratch row of each node, the anchor's under -1."""

    tree: Growth
    rows: dict[int, int] = field(default_factory=dict)


class LanguageModelDrafter(Drafter):
    """Branches share the trunk's keys and values up to the fork, then each holds its own chain."""

    family = "model"

    def __init__(self, name: str, model: TrunkModel, drawing: Drawing, identity: Mapping[str, Any]) -> None:
        super().__init__(drawing.kind)
        self.name = name
        self.model = model
        self.drawing = drawing
        self._identity = dict(identity)
        self._trunk_log_q: dict[int, list[float]] = {}

    def open(self, lane: int) -> None:
        """Forget the lane's previous trunk."""
        self.model.reset(lane)
        self._trunk_log_q.pop(lane, None)

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Bring each lane's trunk up to its anchor, then draft all trees level by level."""
        drafts = [_Draft(self.drawing.start(anchor, shape)) for anchor in anchors]
        if shape.length == 0:
            return [draft.tree.proposal for draft in drafts]
        pending = self._pending(anchors)
        logits = self._root_logits(drafts, pending)
        for depth in range(1, shape.length + 1):
            for draft, rows in zip(drafts, logits, strict=True):
                self.drawing.grow(draft.tree, rows)
            if depth < shape.length:
                logits = self._frontier_logits(drafts)
        for lane, tokens in pending.items():
            self.model.commit(lane, range(len(tokens)))
        return [draft.tree.proposal for draft in drafts]

    def _pending(self, anchors: Sequence[Anchor]) -> dict[int, Sequence[int]]:
        """By lane, the tokens before the anchor that the model has not seen; many are appended at once."""
        pending: dict[int, Sequence[int]] = {}
        for lane in dict.fromkeys(anchor.lane for anchor in anchors):
            here = [anchor for anchor in anchors if anchor.lane == lane]
            last = max(here, key=lambda anchor: anchor.position)
            pending[lane] = last.trunk[self.model.length(lane) : last.position]
            if pending[lane] and (len(here) > 1 or len(pending[lane]) > _CHUNK):
                self.model.append(lane, pending[lane])
                pending[lane] = []
        return pending

    def _root_logits(
        self, drafts: Sequence[_Draft], pending: Mapping[int, Sequence[int]]
    ) -> list[torch.Tensor]:
        """Logits [1, vocabulary] at each anchor; what was pending takes part in the same forward."""
        batch: list[tuple[_Draft, LaneRows]] = []
        names: list[list[int | None]] = []
        for draft in drafts:
            anchor = draft.tree.anchor
            ahead = pending[anchor.lane]
            tokens = [*ahead, anchor.trunk[anchor.position]]
            base = anchor.position - len(ahead)
            chain = LaneRows(anchor.lane, tokens, range(-1, len(tokens) - 1), [base] * len(tokens))
            batch.append((draft, chain))
            names.append([*[None] * len(ahead), -1])
        return [logits[-1:] for logits in self._score(batch, names)]

    def _frontier_logits(self, drafts: Sequence[_Draft]) -> list[torch.Tensor]:
        """Logits [frontier, vocabulary] of every draft's newest nodes."""
        batch = []
        for draft in drafts:
            tree = draft.tree
            parents = [draft.rows[tree.proposal.parents[node]] for node in tree.frontier]
            batch.append((draft, LaneRows(tree.anchor.lane, tree.tokens, parents)))
        return self._score(batch, [draft.tree.frontier for draft in drafts])

    def _score(
        self, batch: Sequence[tuple[_Draft, LaneRows]], nodes: Sequence[Sequence[int | None]]
    ) -> list[torch.Tensor]:
        """One forward for all drafts, several of which may share a lane; notes where each node's row lies."""
        lanes: dict[int, list[int]] = {}
        for index, (_, rows) in enumerate(batch):
            lanes.setdefault(rows.lane, []).append(index)
        merged = [self._merge([batch[index][1] for index in indices]) for indices in lanes.values()]
        starts = {rows.lane: self.model.nodes(rows.lane) for rows in merged}
        scored = dict(zip(lanes, self.model.score(merged), strict=True))
        found: list[torch.Tensor] = [torch.empty(0)] * len(batch)
        for lane, indices in lanes.items():
            offset = 0
            for index in indices:
                draft, rows = batch[index]
                for place, node in enumerate(nodes[index]):
                    if node is not None:
                        draft.rows[node] = starts[lane] + offset + place
                found[index] = scored[lane].logits[offset : offset + len(rows.tokens)]
                offset += len(rows.tokens)
        return found

    def _merge(self, parts: Sequence[LaneRows]) -> LaneRows:
        """Rows of several drafts of one lane as one piece; new chains are numbered behind each other."""
        tokens: list[int] = []
        parents: list[int] = []
        bases: list[int] = []
        first = self.model.nodes(parts[0].lane)
        for part in parts:
            chain = part.bases is not None
            shift = first + len(tokens) if chain else 0
            parents += [parent + shift if chain and parent >= 0 else parent for parent in part.parents]
            bases += part.bases or [0] * len(part.tokens)
            tokens += part.tokens
        return LaneRows(parts[0].lane, tokens, parents, bases)

    def trunk_log_q(self, anchors: Sequence[Anchor], counts: Sequence[int]) -> list[list[float]] | None:
        """log q of the trunk's own tokens: q at a position is the same for every anchor before it."""
        if self.sampling_at(anchors[0].temperature).temperature == 0:
            return None
        found = []
        for anchor, count in zip(anchors, counts, strict=True):
            if anchor.lane not in self._trunk_log_q:
                self._trunk_log_q[anchor.lane] = self._score_trunk(anchor)
            known = self._trunk_log_q[anchor.lane]
            found.append(known[anchor.position + 1 : anchor.position + 1 + count])
        return found

    def _score_trunk(self, anchor: Anchor) -> list[float]:
        """log q of every token of the trunk after its first, by position; the first has none (NaN)."""
        found = [float("nan")]
        self.model.reset(anchor.lane)
        for start in range(0, len(anchor.trunk) - 1, _CHUNK):
            tokens = anchor.trunk[start : min(start + _CHUNK, len(anchor.trunk) - 1)]
            rows = self.model.score([LaneRows(anchor.lane, tokens, range(-1, len(tokens) - 1))])[0]
            self.model.commit(anchor.lane, range(len(tokens)))
            for offset, logits in enumerate(rows.logits.double().cpu().numpy()):
                token = anchor.trunk[start + offset + 1]
                found.append(self.drawing.log_q(logits, token, anchor.temperature))
        return found

    def sampling_at(self, temperature: float) -> DraftSampling:
        """Draft processing in a request of this temperature."""
        return self.drawing.sampling_at(temperature)

    def header(self) -> dict[str, Any]:
        """The model's identity, how q is made, and how the tree forks; every cut equals a live draft."""
        facts = self.drawing.header() | self._identity
        return entry(self.name, self.family, self.kind, cuts=[*SCORED_CUTS], **facts)
