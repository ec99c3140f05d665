"""Draft with a language model of the target's tokenizer, level by level: a chain, or a tree of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal, ProposalKind, entry
from dflash.drafters.fan import Fan
from dflash.drafters.race import draw, slot_law
from dflash.policy.context import DraftSampling
from dflash.policy.noise import draft_exponentials
from dflash.target.model import TrunkModel
from dflash.target.noise import TargetNoise
from dflash.target.sampling import topk
from dflash.target.scratch import LaneRows

_CHUNK = 128


@dataclass(slots=True)
class _Draft:
    """A tree in the making.

    By node, the anchor's under -1, `branches` holds how many branches go through it, and `rows` its scratch
    row; `paths` holds its sibling ranks from the anchor. `frontier` lists the nodes to expand next.
    """

    anchor: Anchor
    branches: dict[int, int]
    proposal: Proposal = field(default_factory=Proposal)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    frontier: list[int] = field(default_factory=lambda: [-1])


class LanguageModelDrafter(Drafter):
    """Branches share the trunk's keys and values up to the fork, then each holds its own chain.

    Siblings are the best of one race, so they are drawn without replacement; the `fan` says how many there
    are, without one all of them stand at the anchor. The law q follows the target's temperature in each
    request if `follow_target`, else `sampling`. `shared` races run on the target's noise at the token's
    position, `independent` ones on noise keyed by the anchor, `deterministic` ones take the largest logits.
    """

    family = "model"

    def __init__(
        self,
        name: str,
        model: TrunkModel,
        kind: ProposalKind,
        sampling: DraftSampling,
        follow_target: bool,
        noise: TargetNoise,
        store_topk: int,
        identity: Mapping[str, Any],
        fan: Fan | None = None,
    ) -> None:
        super().__init__(kind)
        self.name = name
        self.model = model
        self.sampling = sampling
        self.follow_target = follow_target
        self.noise = noise
        self.store_topk = store_topk
        self.fan = fan
        self._identity = dict(identity)
        self._trunk_log_q: dict[int, list[float]] = {}

    def open(self, lane: int) -> None:
        """Forget the lane's previous trunk."""
        self.model.reset(lane)
        self._trunk_log_q.pop(lane, None)

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Bring each lane's trunk up to its anchor, then draft all trees level by level."""
        fan = Fan(self.fan.children[: shape.length]) if self.fan else Fan((shape.branches,))
        drafts = [_Draft(anchor, {-1: min(shape.branches, fan.branches)}) for anchor in anchors]
        if shape.length == 0:
            return [draft.proposal for draft in drafts]
        pending = self._pending(anchors)
        logits = self._root_logits(drafts, pending)
        for depth in range(1, shape.length + 1):
            for draft, rows in zip(drafts, logits, strict=True):
                self._expand(draft, rows, depth, fan)
            if depth < shape.length:
                logits = self._frontier_logits(drafts)
        for lane, tokens in pending.items():
            self.model.commit(lane, range(len(tokens)))
        return [draft.proposal for draft in drafts]

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
            anchor = draft.anchor
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
            tokens = [draft.proposal.tokens[node] for node in draft.frontier]
            parents = [draft.rows[draft.proposal.parents[node]] for node in draft.frontier]
            batch.append((draft, LaneRows(draft.anchor.lane, tokens, parents)))
        return self._score(batch, [draft.frontier for draft in drafts])

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

    def _expand(self, draft: _Draft, logits: torch.Tensor, depth: int, fan: Fan) -> None:
        """Draw the children of every frontier node from `logits` [frontier, vocabulary]."""
        raw = logits.double()
        lse = torch.logsumexp(raw, -1).cpu().numpy()
        values, tokens = topk(raw, max(self.store_topk, 2))
        parents, draft.frontier = draft.frontier, []
        for row, parent in enumerate(parents):
            top = values[row].cpu().numpy()
            draft.proposal.lse[parent] = float(lse[row])
            draft.proposal.topk_tokens[parent] = tokens[row, : self.store_topk].cpu().numpy().astype(np.int32)
            draft.proposal.topk_logits[parent] = top[: self.store_topk].astype(np.float32)
            shares = fan.shares(depth, draft.branches[parent])
            self._draw(draft, raw[row].cpu().numpy(), parent, depth, shares, float(top[0] - top[1]))

    def _draw(
        self,
        draft: _Draft,
        logits: NDArray[np.float64],
        parent: int,
        depth: int,
        shares: Sequence[int],
        margin: float,
    ) -> None:
        path = draft.paths[parent] if parent >= 0 else ()
        law = slot_law(logits, self.sampling_at(draft.anchor.temperature))
        noise = self._noise(draft.anchor, path, depth, len(logits))
        if noise is not None:
            draft.proposal.law[parent] = law
        for rank, sibling in enumerate(draw(law, noise, len(shares))):
            node = draft.proposal.add(
                sibling.token,
                parent,
                log_q=sibling.log_q,
                rank=sibling.rank,
                draft_gap=sibling.draft_gap,
                margin=margin,
            )
            draft.branches[node] = shares[rank]
            draft.paths.append((*path, rank))
            draft.frontier.append(node)

    def _noise(
        self, anchor: Anchor, path: tuple[int, ...], depth: int, vocabulary: int
    ) -> NDArray[np.floating[Any]] | None:
        if self.sampling_at(anchor.temperature).temperature == 0:
            return None
        if self.kind is ProposalKind.SHARED:
            return self.noise.log_exponentials(anchor.key, anchor.position + depth)[:vocabulary]
        return np.log(draft_exponentials(anchor.key, anchor.position, depth, path, vocabulary))

    def trunk_log_q(self, anchor: Anchor, count: int) -> list[float] | None:
        """log q of the trunk's own tokens: q at a position is the same for every anchor before it."""
        if self.sampling_at(anchor.temperature).temperature == 0:
            return None
        if anchor.lane not in self._trunk_log_q:
            self._trunk_log_q[anchor.lane] = self._score_trunk(anchor)
        known = self._trunk_log_q[anchor.lane]
        return known[anchor.position + 1 : anchor.position + 1 + count]

    def _score_trunk(self, anchor: Anchor) -> list[float]:
        """log q of every token of the trunk after its first, by position; the first has none (NaN)."""
        found = [float("nan")]
        self.model.reset(anchor.lane)
        sampling = self.sampling_at(anchor.temperature)
        for start in range(0, len(anchor.trunk) - 1, _CHUNK):
            tokens = anchor.trunk[start : min(start + _CHUNK, len(anchor.trunk) - 1)]
            rows = self.model.score([LaneRows(anchor.lane, tokens, range(-1, len(tokens) - 1))])[0]
            self.model.commit(anchor.lane, range(len(tokens)))
            for offset, logits in enumerate(rows.logits.double().cpu().numpy()):
                law = slot_law(logits, sampling)
                place = np.flatnonzero(law.tokens == anchor.trunk[start + offset + 1])
                found.append(float(law.log_q[place[0]]) if len(place) else -np.inf)
        return found

    def sampling_at(self, temperature: float) -> DraftSampling:
        """Draft processing: the best logits where the target is greedy or proposals are deterministic."""
        greedy = temperature == 0 or self.kind is ProposalKind.DETERMINISTIC
        followed = temperature if self.follow_target else self.sampling.temperature
        return replace(self.sampling, temperature=0.0 if greedy else followed)

    def header(self) -> dict[str, Any]:
        """The model's identity, how q is made, and how the tree forks; both cuts equal a live draft."""
        law: dict[str, Any] = {}
        if self.kind is not ProposalKind.DETERMINISTIC:
            law = {
                "draft_temperature": self.sampling.temperature,
                "draft_top_k": self.sampling.top_k or None,
                "draft_top_p": self.sampling.top_p,
                "draft_follows_target": self.follow_target,
            }
        tree = {"tree": list(self.fan.children)} if self.fan else {}
        facts = law | tree | self._identity
        return entry(self.name, self.family, self.kind, cuts=["length", "branches"], **facts)
