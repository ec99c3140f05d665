"""Records draft files of a Markov target over a dozen tokens: a speculative decoder to be read at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dflash.draftfile.rows import RequestRows
from dflash.draftfile.writer import ROWS_PER_GROUP, DraftFileWriter
from dflash.policy.context import Proposal, context_from_header
from dflash.policy.noise import (
    draft_exponentials,
    request_key,
    residual_exponentials,
    rng_key_hex,
    target_exponentials,
)
from dflash.policy.registry import parse_policy
from dflash.policy.rounds import Rounds
from dflash.policy.speculative import residual_tokens

VOCAB, TOPK = 12, 4
EOS = VOCAB - 1
Edit = Callable[[list[dict[str, Any]]], None]


@dataclass
class Recorder:
    """What to record; `edit` may spoil the rows of a request before they are written."""

    policy: str = "match"
    proposal: Proposal = Proposal.SHARED
    temperature: float = 0.8
    length: int = 3
    branches: int = 1
    requests: int = 4
    max_new_tokens: int = 24
    seed: int = 5
    temperatures: list[float] = field(default_factory=list)
    edit: Edit = lambda rows: None
    dense: bool = False
    largest: tuple[int, int] | None = None
    group_rows: int = ROWS_PER_GROUP
    lanes: int = 1

    def __post_init__(self) -> None:
        random = np.random.default_rng(1)
        self.target = random.normal(0.0, 1.6, (VOCAB, VOCAB)).astype(np.float32)
        self.target[:, EOS] -= 3.0
        self.drafter = (self.target + random.normal(0.0, 0.7, self.target.shape)).astype(np.float32)

    def write(self, path: Path, *, part: int = 0, parts: int = 1, run_id: str = "tiny") -> Path:
        """Record the requests of one part."""
        place = {"run_id": run_id, "part": part, "parts": parts, "row_group_rows": self.group_rows}
        with DraftFileWriter(path, self.header(), **place) as writer:
            for index in range(part * self.requests, (part + 1) * self.requests):
                rows = RequestRows(f"r{index}")
                recorded = self.request(index)
                self.edit(recorded)
                for row in recorded:
                    rows.append(row)
                writer.write_request(rows.table())
            writer.finish()
        return path

    def header(self) -> dict[str, Any]:
        model = {
            "name": "tiny",
            "revision": None,
            "weights_digest": "0" * 64,
            "config_digest": "0" * 64,
            "dtype": "float32",
            "quantisation": None,
            "parameter_count": 1,
        }
        sampled = self.proposal is not Proposal.DETERMINISTIC
        drafter = model | {
            "family": "self",
            "proposal": str(self.proposal),
            "draft_temperature": self.temperature if sampled else None,
            "draft_top_k": TOPK if sampled else None,
            "draft_top_p": None,
            "draft_follows_target": True,
            "cuts": ["length", "branches"],
        }
        return {
            "target": model,
            "drafters": [drafter] if self.length else [],
            "tokenizer": {
                "digest": "0" * 64,
                "vocab_size": VOCAB,
                "padded_vocab_size": VOCAB,
                "template_digest": None,
            },
            "sampling": {"temperature": self.temperature, "top_k": None, "top_p": None},
            "seed": self.seed,
            "policy": parse_policy(self.policy).to_dict() | self.live_shape(),
            "shape": {"length": self.largest[0], "branches": self.largest[1]}
            if self.largest
            else {"length": self.length, "branches": self.branches},
            "dense": self.dense,
            "store_topk": TOPK,
            "draft_topk": TOPK,
            "q_complete": True,
            "features": {"mode": "none"},
            "tie_tolerance": 1e-3,
            "lanes": self.lanes,
            "rng": {"scheme": "philox4x32-10", "version": 1},
            "engine": {"toolkit": "0"},
            "created_at": "2026-11-29T12:00:00Z",
            "host": None,
            "parents": [],
        }

    def live_shape(self) -> dict[str, Any]:
        """What live rounds draft, if that is not the largest shape."""
        return {"shape": {"length": self.length, "branches": self.branches}} if self.largest else {}

    def request(self, index: int) -> list[dict[str, Any]]:
        """All rows of one request, prefill first."""
        prompt = [1, 2, 3 + index % 2]
        key = request_key(self.seed, prompt, index // 2)
        temperature = self.temperatures[index] if self.temperatures else self.temperature
        info = {
            "sampling": {"temperature": temperature, "top_k": None, "top_p": None},
            "seed": self.seed,
            "ordinal": index // 2,
            "rng_key": rng_key_hex(key),
            "max_new_tokens": self.max_new_tokens,
        }
        trunk = list(prompt)
        rows: list[dict[str, Any]] = []
        while not rows or rows[-1]["truncated_by"] == "none":
            live = bool(rows)
            row = self.judged(trunk, key, temperature, self.length if live else 0)
            rounds = Rounds.from_row(row, key)
            decision = parse_policy(self.policy).rule.decide(
                rounds, context_from_header(self.header(), temperature)
            )
            path = decision.path(0)
            bonus = int(decision.bonus[0]) if live else int(row["slot_choice"][0])
            emitted = [*(int(row["node_token"][node]) for node in path), bonus]
            kept, reason = self.truncate(emitted, len(trunk) - len(prompt))
            trunk += kept
            extra = {} if live else {"prompt_tokens": prompt, "request_info": json.dumps(info)}
            rows.append(
                row
                | extra
                | {
                    "kind": 0 if live else 2,
                    "round": len(rows) - 1,
                    "accepted_nodes": path,
                    "bonus_token": bonus,
                    "emitted": len(kept),
                    "truncated_by": reason,
                    "draft_length": self.length if live else 0,
                    "branches": self.branches if live else 0,
                }
            )
        return rows + (self.dense_rows(trunk, len(prompt), key, temperature) if self.dense else [])

    def dense_rows(
        self, trunk: list[int], first: int, key: tuple[int, int], temperature: float
    ) -> list[dict[str, Any]]:
        """A judged draft of the largest shape at every output token but the last."""
        live, (self.length, self.branches) = (
            (self.length, self.branches),
            self.largest
            or (
                self.length,
                self.branches,
            ),
        )
        rows = []
        for anchor in range(first, len(trunk) - 1):
            row = self.judged(trunk[: anchor + 1], key, temperature, self.length)
            p = self.log_p(self.target[[trunk[anchor]]].astype(np.float64), temperature)[0]
            row |= {"kind": 1, "round": -1, "trunk_logp": float(p[trunk[anchor + 1]])}
            row["off_trajectory"] = bool(row["slot_choice"][0] != trunk[anchor + 1])
            if temperature and self.proposal is not Proposal.DETERMINISTIC:
                ahead = trunk[anchor : anchor + self.length + 1]
                q = [self.q(a, temperature)[b] for a, b in zip(ahead, ahead[1:], strict=False)]
                with np.errstate(divide="ignore"):
                    row["trunk_logq"] = np.log(np.array(q)).astype(np.float32)
            rows.append(row)
        self.length, self.branches = live
        return rows

    def truncate(self, tokens: list[int], before: int) -> tuple[list[int], str]:
        for count, token in enumerate(tokens, start=1):
            if token == EOS:
                return tokens[:count], "eos"
            if before + count >= self.max_new_tokens:
                return tokens[:count], "length"
        return tokens, "none"

    def judged(
        self, trunk: list[int], key: tuple[int, int], temperature: float, length: int
    ) -> dict[str, Any]:
        """One round as it will be stored, without a decision."""
        anchor = len(trunk) - 1
        nodes = self.draft(trunk, key, temperature, length)
        token, parent, log_q = (np.array([node[i] for node in nodes]) for i in range(3))
        parent = parent.astype(np.int16)
        depth = [0]
        for above in parent:
            depth.append(depth[above + 1] + 1)
        slot_token = np.array([trunk[-1], *token], dtype=np.int64)
        logits = self.target[slot_token].astype(np.float64)
        gap = np.full(len(slot_token), 1.0, dtype=np.float32)
        log_p = self.log_p(logits, temperature)
        choice = [
            int(np.argmin(np.exp(np.log(target_exponentials(key, anchor + 1 + d, VOCAB)) - log_p[slot])))
            if temperature
            else int(np.argmax(logits[slot]))
            for slot, d in enumerate(depth)
        ]
        at_parent = parent.astype(np.int64) + 1
        order = np.argsort(-self.drafter[slot_token], axis=1, kind="stable")[:, :TOPK]
        scores, opinion = self.drafter[slot_token], self.target[slot_token]
        inner = np.isin(np.arange(len(slot_token)), at_parent)
        best = np.argsort(-self.target[slot_token], axis=1, kind="stable")[:, :TOPK]
        numbers = token.astype(np.int64)
        return {
            "anchor_position": anchor,
            "anchor_token": trunk[-1],
            "node_token": numbers.astype(np.int32),
            "node_parent": parent,
            "node_source": np.zeros(len(nodes), dtype=np.int8),
            "node_logq": log_q.astype(np.float32),
            "node_logp": log_p[at_parent, numbers].astype(np.float32),
            "node_target_logit": logits[at_parent, numbers].astype(np.float32),
            "node_residual_token": self.replacements(nodes, slot_token, choice, key, anchor, temperature),
            "slot_argmax": logits.argmax(axis=1).astype(np.int32),
            "slot_choice": np.array(choice, dtype=np.int32),
            "slot_gap": gap,
            "slot_cut_gap": np.full(len(slot_token), np.nan, dtype=np.float32),
            "node_draft_gap": np.arange(len(nodes), 0, -1, dtype=np.float32),
            "slot_lse": np.logaddexp.reduce(logits, axis=1).astype(np.float32),
            "slot_lse_p": self.lse_p(logits, temperature),
            "slot_cutoff": np.full(len(slot_token), -np.inf, dtype=np.float32),
            "slot_topk_token": best.ravel(),
            "slot_topk_logit": np.take_along_axis(logits, best, axis=1).ravel().astype(np.float32),
            "draft_lse": np.where(inner, np.logaddexp.reduce(scores, axis=1), np.nan).astype(np.float32),
            "draft_topk_token": order[inner].ravel(),
            "draft_topk_logit": np.take_along_axis(scores, order, axis=1)[inner].ravel(),
            "draft_topk_target_logit": np.take_along_axis(opinion, order, axis=1)[inner].ravel(),
        }

    def log_p(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        if temperature == 0:
            return np.where(np.arange(VOCAB) == logits.argmax(axis=1)[:, None], 0.0, -np.inf)
        return logits / temperature - np.logaddexp.reduce(logits / temperature, axis=1)[:, None]

    def lse_p(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        if temperature == 0:
            return np.full(len(logits), np.nan, dtype=np.float32)
        return np.logaddexp.reduce(logits / temperature, axis=1).astype(np.float32)

    def q(self, token: int, temperature: float) -> np.ndarray:
        logits = self.drafter[token].astype(np.float64) / (temperature or 1.0)
        kept = np.argsort(-logits, kind="stable")[:TOPK]
        law = np.zeros(VOCAB)
        law[kept] = np.exp(logits[kept] - logits[kept].max())
        return law / law.sum()

    def draft(
        self, trunk: list[int], key: tuple[int, int], temperature: float, length: int
    ) -> list[tuple[int, int, float]]:
        """(token, parent, log q) of each node, level by level; siblings branch at the anchor only."""
        nodes: list[tuple[int, int, float]] = []
        frontier: list[tuple[int, int, tuple[int, ...]]] = [(-1, trunk[-1], ())]
        for depth in range(1, length + 1):
            level = []
            for parent, before, ranks in frontier:
                law, left = self.q(before, temperature), 1.0
                noise = self.noise(trunk, key, temperature, depth, ranks)
                score = law if noise is None else law / noise
                order = np.argsort(-score, kind="stable")
                for rank, token in enumerate(order[: self.branches if depth == 1 else 1]):
                    log_q = 0.0 if noise is None else float(np.log(law[token] / left))
                    left -= law[token]
                    nodes.append((int(token), parent, log_q))
                    level.append((len(nodes) - 1, int(token), (*ranks, rank)))
            frontier = level
        return nodes

    def noise(
        self, trunk: list[int], key: tuple[int, int], temperature: float, depth: int, ranks: tuple[int, ...]
    ) -> np.ndarray | None:
        if temperature == 0 or self.proposal is Proposal.DETERMINISTIC:
            return None
        anchor = len(trunk) - 1
        if self.proposal is Proposal.SHARED:
            return target_exponentials(key, anchor + depth, VOCAB)
        return draft_exponentials(key, anchor, depth, ranks, VOCAB)

    def replacements(
        self,
        nodes: list[tuple[int, int, float]],
        slot_token: np.ndarray,
        choice: list[int],
        key: tuple[int, int],
        anchor: int,
        temperature: float,
    ) -> np.ndarray:
        drawn = np.array([choice[parent + 1] for _, parent, _ in nodes], dtype=np.int32)
        sampled = temperature > 0 and self.proposal is not Proposal.DETERMINISTIC
        if not (sampled and self.policy.startswith("speculative")):
            return drawn
        ranks: list[tuple[int, ...]] = []
        for node, (_, parent, _) in enumerate(nodes):
            rank = [above for _, above, _ in nodes[:node]].count(parent)
            ranks.append((*(ranks[parent] if parent >= 0 else ()), rank))
        for parent in {node[1] for node in nodes}:
            children = [index for index, node in enumerate(nodes) if node[1] == parent]
            token = int(slot_token[parent + 1])
            p = np.exp(self.log_p(self.target[[token]].astype(np.float64), temperature))[0]
            depth, above = len(ranks[children[0]]), ranks[children[0]][:-1]
            exponential = residual_exponentials(key, anchor, depth, above, VOCAB)
            tokens = [nodes[child][0] for child in children]
            drawn[children] = residual_tokens(
                p, self.q(token, temperature), tokens, False, exponential, choice[parent + 1]
            )
        return drawn
