"""A speculative decoder on Markov tables, many seeds in lock-step.

Noise and decisions are the package's, drawing and counting are not. Trees have `branches` chains of `length`
nodes side by side; node (b, d) is number b * length + d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dflash.policy.context import DraftSampling, Proposal, RuleContext
from dflash.policy.noise import Purpose, path_hash, request_key
from dflash.policy.philox import philox4x32
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Rule

PROMPT = [7, 1]


def seed_keys(count: int) -> np.ndarray:
    """Keys of the seeds 0, 1, ... on one prompt; uint32 `[count, 2]`."""
    return np.array([request_key(seed, PROMPT, 0) for seed in range(count)], dtype=np.uint32)


def words(key: np.ndarray, position: np.ndarray, purpose: int, depth: int, path: int) -> np.ndarray:
    """The four words of one counter for each key; `[S, 4]`."""
    counter = np.zeros((len(key), 4), dtype=np.uint32)
    counter[:, 0] = position
    counter[:, 1] = purpose + 256 * depth
    counter[:, 2] = path
    return philox4x32(counter, key)


def noise(
    key: np.ndarray, position: np.ndarray, purpose: int, depth: int, path: int, vocab: int
) -> np.ndarray:
    """Standard exponentials of up to four tokens; `[S, vocab]`."""
    uniform = ((words(key, position, purpose, depth, path) + 0.5) * 2.0**-32).astype(np.float32)
    with np.errstate(divide="ignore"):
        return -np.log1p(-uniform.astype(np.float64))[:, :vocab]


def winners(exponential: np.ndarray, law: np.ndarray) -> np.ndarray:
    """Tokens in the order in which they win the race, without mass last; `[S, vocab]`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(law > 0, exponential / law, np.inf)
    return np.argsort(ratio, axis=1, kind="stable")


@dataclass
class TableEngine:
    """A target `p`, a drafter `q` (both `[V, V]`), and what is decided how."""

    p: np.ndarray
    q: np.ndarray
    rule: Rule
    proposal: Proposal
    length: int
    branches: int = 1
    temperature: float = 0.8
    residual_purpose: int = Purpose.RESIDUAL
    position_keyed_drafts: bool = False
    coins: Callable[[Rounds, Purpose], np.ndarray] | None = None

    @property
    def context(self) -> RuleContext:
        """As a header would fix it."""
        base = RuleContext(self.temperature, self.proposal, True, DraftSampling(1.0), self.rule.name)
        return base if self.coins is None else replace(base, coins=self.coins)

    @property
    def one_hot(self) -> bool:
        """Whether what is left of p is p without the drafted tokens: drafts are fixed, or taken as fixed."""
        target_only = getattr(self.rule, "method", None) == "target-only" or self.rule.name == "threshold"
        return target_only or self.proposal is Proposal.DETERMINISTIC

    @property
    def blocks(self) -> bool:
        """Whether whole blocks are verified."""
        return self.rule.name == "block" or getattr(self.rule, "method", None) == "block"

    def run(self, key: np.ndarray, wanted: int) -> np.ndarray:
        """The first `wanted` tokens after the prompt for every key; `[S, wanted]`."""
        seeds = len(key)
        text = np.full((seeds, wanted + self.length + 1), -1)
        done = np.zeros(seeds, dtype=np.int64)
        anchor = np.full(seeds, PROMPT[-1])
        open_ = np.arange(seeds)
        while len(open_):
            position = len(PROMPT) - 1 + done[open_]
            tokens, count = self._round(key[open_], position, anchor[open_])
            for step in range(self.length + 1):
                given = np.flatnonzero(step <= count)
                text[open_[given], done[open_[given]] + step] = tokens[given, step]
            done[open_] += count + 1
            anchor[open_] = tokens[np.arange(len(open_)), count]
            open_ = open_[done[open_] < wanted]
        return text[:, :wanted]

    def _round(
        self, key: np.ndarray, position: np.ndarray, anchor: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that one round emits `[S, length + 1]`, and how many of them were accepted drafts `[S]`."""
        token, log_q = self._draft(key, position, anchor)
        rounds = self._rounds(key, position, anchor, token, log_q)
        decision = self.rule.decide(rounds, self.context)
        accepted = decision.accepted.reshape(len(key), self.branches, self.length)
        # one branch at most is accepted at each depth
        emitted = np.zeros((len(key), self.length + 1), dtype=np.int64)
        emitted[:, : self.length] = (token * accepted).sum(axis=1)
        count = accepted.sum(axis=(1, 2))
        emitted[np.arange(len(key)), count] = decision.bonus
        return emitted, count

    def _draft(
        self, key: np.ndarray, position: np.ndarray, anchor: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and conditional log q of all nodes; both `[S, branches, length]`."""
        token = np.zeros((len(key), self.branches, self.length), dtype=np.int64)
        q = np.ones(token.shape)
        if self.length:
            order = self._race(key, position, anchor, 1, 0)
            left = np.ones(len(key))
            for branch in range(self.branches):
                token[:, branch, 0] = order[:, branch]
                share = self.q[anchor, order[:, branch]]
                q[:, branch, 0] = share / left
                left = left - share
        for depth in range(1, self.length):
            for branch in range(self.branches):
                before = token[:, branch, depth - 1]
                token[:, branch, depth] = self._race(key, position, before, depth + 1, path_hash((branch,)))[
                    :, 0
                ]
                q[:, branch, depth] = self.q[before, token[:, branch, depth]]
        log_q = np.zeros(token.shape) if self.proposal is Proposal.DETERMINISTIC else np.log(q)
        return token, log_q

    def _race(
        self, key: np.ndarray, position: np.ndarray, before: np.ndarray, depth: int, path: int
    ) -> np.ndarray:
        vocab = len(self.q)
        if self.proposal is Proposal.DETERMINISTIC:
            return np.argsort(-self.q[before], axis=1, kind="stable")
        if self.proposal is Proposal.SHARED:
            return winners(noise(key, position + depth, Purpose.TARGET, 0, 0, vocab), self.q[before])
        if self.position_keyed_drafts:
            return winners(noise(key, position + depth, Purpose.DRAFT, 0, path, vocab), self.q[before])
        return winners(noise(key, position, Purpose.DRAFT, depth, path, vocab), self.q[before])

    def _choice(self, key: np.ndarray, position: np.ndarray, before: np.ndarray) -> np.ndarray:
        return winners(noise(key, position, Purpose.TARGET, 0, 0, len(self.p)), self.p[before])[:, 0]

    def _replacements(
        self, key: np.ndarray, position: np.ndarray, anchor: np.ndarray, token: np.ndarray
    ) -> np.ndarray:
        """What is emitted if a node and its earlier siblings fail; `[S, branches, length]`."""
        drawn = np.zeros(token.shape, dtype=np.int64)
        capped = np.ones((len(key), 1))
        for depth in range(self.length):
            p = self.p[anchor if depth == 0 else token[:, 0, depth - 1]]
            q = self.q[anchor if depth == 0 else token[:, 0, depth - 1]].copy()
            for branch in range(self.branches):
                if depth:
                    p, q = self.p[token[:, branch, depth - 1]], self.q[token[:, branch, depth - 1]].copy()
                if self.one_hot:
                    q = np.eye(len(self.p))[token[:, branch, depth]]
                rest = np.maximum(0.0, capped * p - q)
                path = path_hash((branch,)) if depth else 0
                exponential = noise(key, position, self.residual_purpose, depth + 1, path, len(self.p))
                drawn[:, branch, depth] = winners(exponential, rest)[:, 0]
                total = rest.sum(axis=1, keepdims=True)
                p = np.where(total > 0, rest / np.where(total > 0, total, 1), p)
                np.put_along_axis(q, token[:, branch, depth, None], 0.0, axis=1)
                q = q / np.maximum(q.sum(axis=1, keepdims=True), 1e-300)
            if self.blocks:
                before = anchor if depth == 0 else token[:, 0, depth - 1]
                ratio = self.p[before, token[:, 0, depth]]
                if not self.one_hot:
                    ratio = ratio / self.q[before, token[:, 0, depth]]
                capped = np.minimum(1.0, capped * ratio[:, None])
        return drawn

    def _masses(
        self, anchor: np.ndarray, token: np.ndarray, log_p: np.ndarray, log_q: np.ndarray
    ) -> np.ndarray:
        """Residual masses of the first chain `[S, branches * length]`; later ones are not used."""
        capped, mass = np.ones(len(anchor)), np.zeros(log_p.shape)
        for depth in range(self.length):
            before = anchor if depth == 0 else token[:, 0, depth - 1]
            mass[:, depth] = np.maximum(0.0, capped[:, None] * self.p[before] - self.q[before]).sum(axis=1)
            capped = np.minimum(1.0, capped * np.exp(log_p[:, depth] - log_q[:, 0, depth]))
        return mass

    def _rounds(
        self, key: np.ndarray, position: np.ndarray, anchor: np.ndarray, token: np.ndarray, log_q: np.ndarray
    ) -> Rounds:
        seeds, nodes = len(key), self.branches * self.length
        flat = token.reshape(seeds, nodes)
        depth = np.tile(np.arange(self.length), self.branches)
        parent = np.where(depth == 0, -1, np.arange(nodes) - 1)
        at_slot = np.column_stack([anchor, flat])
        slot_position = position[:, None] + 1 + np.concatenate([[0], depth + 1])
        choice = np.column_stack(
            [self._choice(key, slot_position[:, slot], at_slot[:, slot]) for slot in range(nodes + 1)]
        )
        before = np.where(parent < 0, anchor[:, None], flat[:, np.maximum(parent, 0)])
        with np.errstate(divide="ignore"):
            log_p = np.log(self.p[before, flat])
        logit = np.log(np.maximum(self.p, 1e-300)) * self.temperature
        draft_logit = np.log(np.maximum(self.q, 1e-300))
        order = np.argsort(-self.q, axis=1, kind="stable")
        expanded = at_slot.ravel()
        values = {
            "node_token": flat.ravel(),
            "node_logp": stored(log_p).ravel(),
            "node_logq": stored(log_q).ravel(),
            "node_residual_mass": stored(self._masses(anchor, token, log_p, log_q)).ravel(),
            "node_residual_token": self._replacements(key, position, anchor, token).ravel(),
            "slot_choice": choice.ravel(),
            "slot_argmax": self.p.argmax(axis=1)[expanded],
            "slot_lse_p": np.zeros(len(expanded)),
            "slot_cutoff": np.full(len(expanded), -np.inf),
            "draft_lse": np.zeros(len(expanded)),
            "draft_topk_token": order[expanded],
            "draft_topk_logit": stored(np.take_along_axis(draft_logit, order, axis=1))[expanded],
            "draft_topk_target_logit": stored(np.take_along_axis(logit, order, axis=1))[expanded],
        }
        return Rounds.build(np.full(seeds, nodes), np.tile(parent, seeds), position, key, values)


def stored(values: np.ndarray) -> np.ndarray:
    """Rounded to float32 as a column would be."""
    return values.astype(np.float32).astype(np.float64)


def chi_square(texts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square of texts against their law, as a standard normal quantile (Wilson and Hilferty)."""
    cells = np.ravel_multi_index(tuple(texts.T), law.shape)
    count = np.bincount(cells, minlength=law.size)
    expected = law.ravel() * len(texts)
    if count[expected == 0].any():
        return np.inf
    likely = expected > 0
    statistic = ((count[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    spread = 2.0 / (9.0 * freedom)
    return float((np.cbrt(statistic / freedom) - (1.0 - spread)) / np.sqrt(spread))
