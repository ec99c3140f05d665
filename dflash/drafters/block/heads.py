"""Heads that read the token before: Markov bias, confidence (DSpark), candidate selection (DFlash 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dflash.drafters.block.config import BlockConfig, Confidence, Markov, Selector


class MarkovHead(nn.Module):
    """A low-rank bias on the logits of a slot, by the token before it: W2 m, where m is made of W1[token].

    `vanilla` takes m = W1[token], `gated` gates it with the slot's hidden state, `rnn` keeps a state along
    the block (DSpark, arXiv 2607.05147). W1 has a row a token of the target, W2 one a draft token.
    """

    def __init__(self, config: BlockConfig, head: Markov) -> None:
        super().__init__()
        self.kind, self.rank = head.kind, head.rank
        self.markov_w1 = nn.Embedding(config.vocabulary, head.rank)
        self.markov_w2 = nn.Linear(head.rank, config.draft_vocabulary or config.vocabulary, bias=False)
        if head.kind == "gated":
            self.gate_proj = nn.Linear(config.hidden_size + head.rank, head.rank)
        if head.kind == "rnn":
            self.joint_proj = nn.Linear(2 * head.rank + config.hidden_size, 3 * head.rank)

    def start(self, rows: Tensor) -> Tensor:
        """The state before the first slot, `[…, rank]` for hidden rows `[…, hidden]`."""
        return rows.new_zeros(*rows.shape[:-1], self.rank)

    def step(self, hidden: Tensor, before: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One slot: m and the next state, each `[…, rank]`.

        Args:
            hidden: `[…, hidden]` of the slot.
            before: `[…]`, ids of the tokens before the slot's.
            state: `[…, rank]`; only `rnn` reads it.
        """
        known = self.markov_w1(before)
        if self.kind == "vanilla":
            return known, state
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat([hidden, known], dim=-1))) * known, state
        gate, fresh, out = self.joint_proj(torch.cat([state, known, hidden], dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(fresh)

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        """m of whole blocks `[…, slots, rank]` under given tokens; the bias is `markov_w2` of it.

        Args:
            hidden: `[…, slots, hidden]`.
            before: `[…, slots]`, ids of the tokens before each slot's: the anchor, then the block's own.
        """
        if self.kind != "rnn":
            return self.step(hidden, before, hidden)[0]
        state, mixed = self.start(hidden[..., 0, :]), []
        for slot in range(hidden.shape[-2]):
            out, state = self.step(hidden[..., slot, :], before[..., slot], state)
            mixed.append(out)
        return torch.stack(mixed, dim=-2)


class ConfidenceHead(nn.Module):
    """The logit of a slot's probability to be accepted, fixed before its token is drawn (DSpark)."""

    def __init__(self, config: BlockConfig, head: Confidence) -> None:
        super().__init__()
        self.with_markov = head.with_markov
        rank = config.markov.rank if head.with_markov and config.markov else 0
        self.proj = nn.Linear(config.hidden_size + rank, 1)

    def forward(self, hidden: Tensor, known: Tensor | None) -> Tensor:
        """`[…]` of hidden rows `[…, hidden]` and W1 of the tokens before `[…, rank]`."""
        rows = torch.cat([hidden, known], dim=-1) if self.with_markov and known is not None else hidden
        return self.proj(rows).squeeze(-1)


class CandidateSelector(nn.Module):
    """Scores the best tokens of a slot by the token before: unary + (A[before] * W h) . S[candidate]."""

    def __init__(self, config: BlockConfig, head: Selector) -> None:
        super().__init__()
        self.top_k = head.top_k
        self.predecessor_codebook = nn.Parameter(torch.empty(config.vocabulary, head.rank))
        self.successor_codebook = nn.Parameter(torch.empty(config.vocabulary, head.rank))
        self.hidden_projection = nn.Linear(config.hidden_size, head.rank, bias=False)
        nn.init.normal_(self.predecessor_codebook, std=0.02)
        nn.init.normal_(self.successor_codebook, std=0.02)

    def scores(self, hidden: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """What is added to the unary logits of `candidates`, `[…, candidates]`.

        Args:
            hidden: `[…, hidden]` of the slot.
            before: `[…]`, ids of the tokens before the slot's.
            candidates: `[…, candidates]`, token ids.
        """
        read = self.predecessor_codebook[before] * self.hidden_projection(hidden)
        return (read[..., None, :] * self.successor_codebook[candidates]).sum(-1)

    def forward(self, hidden: Tensor, before: Tensor, logits: Tensor) -> Tensor:
        """`logits` `[…, vocabulary]` with scores on the `top_k` best tokens and -inf on all others."""
        unary, candidates = logits.topk(self.top_k, dim=-1)
        scored = unary + self.scores(hidden, before, candidates).to(unary.dtype)
        return torch.full_like(logits, -torch.inf).scatter(-1, candidates, scored)
