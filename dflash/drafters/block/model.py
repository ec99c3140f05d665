"""The block drafter as a torch module: one forward for training and for drafting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dflash.drafters.block.attention import KeyValue, Rotation
from dflash.drafters.block.config import BlockConfig, LayerMask
from dflash.drafters.block.heads import CandidateSelector, ConfidenceHead, MarkovHead
from dflash.drafters.block.layers import BlockLayer
from dflash.drafters.block.masks import block_masks


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What a drafter uses of the frozen target: the raw embedding table `[vocabulary, hidden]` and the output
    head, `[…, hidden]` to `[…, vocabulary]`.
    """

    embedding: Tensor
    head: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, target: Any) -> Borrowed:
        """Of a transformers causal language model."""
        return cls(target.get_input_embeddings().weight.detach(), target.get_output_embeddings())

    def __deepcopy__(self, memo: dict[int, Any]) -> Borrowed:
        """Copies of a drafter borrow the same tables."""
        return self


class _Rotary(Qwen3RotaryEmbedding):
    """Frequencies stay in float32, as they are no weights: rounded ones are off by radians at far rows."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Rotary:
        return super()._apply(lambda buffer: buffer.to(fn(buffer).device), recurse)


class SlotScores(NamedTuple):
    """One slot under given tokens before it: logits over the target's vocabulary (-inf where nothing can be
    drafted), the confidence logit or None, and the Markov state after it.
    """

    logits: Tensor
    confidence: Tensor | None
    state: Tensor | None


class BlockDrafter(nn.Module):
    """Layers over a block of mask tokens, with the target's hidden states injected as context.

    Names of parameters are those of the public DFlash and DSpark checkpoints. What the configuration does not
    own is borrowed from the target by `borrow`, and is no parameter.

    Training: `forward` gives the hidden states of blocks drafted from many anchors of each sequence in one
    pass; `logits`, `markov_head` and `confidence_head` turn them into what is drafted. Drafting: `context`
    and `key_values` once a committed token, then `blocks`, then `slot` along each path.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in config.layers)
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.rotary = _Rotary(_rotary_config(config))
        drafted = config.draft_vocabulary or config.vocabulary
        self.embed_tokens = nn.Embedding(config.vocabulary, width) if config.own_embedding else None
        self.lm_head = nn.Linear(width, drafted, bias=False) if config.own_head else None
        self.mask_embedding = nn.Parameter(torch.zeros(width)) if config.own_mask else None
        self.markov_head = MarkovHead(config, config.markov) if config.markov else None
        self.confidence_head = ConfidenceHead(config, config.confidence) if config.confidence else None
        self.candidate_selector = CandidateSelector(config, config.selector) if config.selector else None
        if config.draft_vocabulary is not None:
            self.register_buffer("d2t", torch.zeros(drafted, dtype=torch.long))
        self._borrowed: Borrowed | None = None

    def borrow(self, borrowed: Borrowed) -> None:
        """Use the target's tables for what the drafter does not own."""
        self._borrowed = borrowed

    def forward(self, tokens: Tensor, taps: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states of the drafting slots of blocks from many anchors of each sequence.

        A block sees the taps before its anchor, the anchor's token, and nothing else of the sequence.

        Args:
            tokens: int64 `[B, T]`.
            taps: `[B, T, taps x target hidden]`, the target's hidden states at the configured indices,
                concatenated in their order.
            anchors: int64 `[B, A]`, positions of the anchors in [0, T).

        Returns:
            `[B, A, drafts, hidden]`: slot j predicts position anchor + 1 + j.
        """
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)[None].expand_as(tokens)
        context = self.key_values(self.context(taps), positions)
        masks = block_masks(self.config.layers, anchors, self.config.block_size, length)
        return self.blocks(tokens.gather(1, anchors), anchors, context, masks)

    def context(self, taps: Tensor) -> Tensor:
        """Fuse taps `[B, T, taps x target hidden]` into context rows `[B, T, hidden]`."""
        return self.hidden_norm(self.fc(taps))

    def key_values(self, context: Tensor, positions: Tensor) -> list[KeyValue]:
        """Each layer's keys and values of context rows `[B, T, hidden]` at `positions` `[B, T]`."""
        rotation = self._rotation(context, positions)
        return [layer.self_attn.key_value(context, rotation) for layer in self.layers]

    def blocks(
        self,
        tokens: Tensor,
        anchors: Tensor,
        context: Sequence[KeyValue],
        masks: Mapping[LayerMask, Tensor],
    ) -> Tensor:
        """Hidden states of the drafting slots, `[B, A, drafts, hidden]`, after the final norm.

        Args:
            tokens: int64 `[B, A]`, the anchors' tokens.
            anchors: int64 `[B, A]`, their positions.
            context: One a layer.
            masks: Of `block_masks`, by kind of layer.
        """
        rows = self._embedded(tokens)
        offsets = torch.arange(self.config.block_size, device=anchors.device)
        rotation = self._rotation(rows, (anchors[..., None] + offsets).flatten(1))
        for layer, kind, seen in zip(self.layers, self.config.layers, context, strict=True):
            rows = layer(rows, rotation, seen, masks[kind])
        return self.norm(rows[:, :, self.config.first_slot :])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[…, draft vocabulary]` of hidden rows, before any head that reads the token before."""
        return self.capped(self.output_head(hidden))

    def capped(self, logits: Tensor) -> Tensor:
        """What the head leaves, scaled and softly capped as the drafter wants it."""
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        if self.config.softcap is not None:
            logits = torch.tanh(logits / self.config.softcap) * self.config.softcap
        return logits

    def plain_head(self) -> Tensor | None:
        """The output head `[draft vocabulary, hidden]`, own or borrowed; None where it is no plain matrix."""
        head = self.lm_head if self.lm_head is not None else self._loan().head
        if not isinstance(head, nn.Linear) or head.bias is not None or type(head.weight.data) is not Tensor:
            return None
        return head.weight.data

    def slot(self, hidden: Tensor, logits: Tensor, before: Tensor, state: Tensor | None) -> SlotScores:
        """What is drafted at one slot behind given tokens.

        Args:
            hidden: `[…, hidden]` of the slot.
            logits: `[…, draft vocabulary]` of `logits`.
            before: int64 `[…]`, the tokens before the slot's.
            state: `[…, rank]` of the slot before; None at the first.
        """
        known = confidence = None
        if self.markov_head is not None:
            state = self.markov_head.start(hidden) if state is None else state
            mixed, state = self.markov_head.step(hidden, before, state)
            logits = logits + self.markov_head.markov_w2(mixed)
            known = self.markov_head.markov_w1(before)
        if self.confidence_head is not None:
            confidence = self.confidence_head(hidden, known)
        if self.candidate_selector is not None:
            logits = self.candidate_selector(hidden, before, logits)
        return SlotScores(self.spread(logits), confidence, state)

    def spread(self, logits: Tensor) -> Tensor:
        """Draft logits `[…, draft vocabulary]` over the target's vocabulary, -inf where nothing is drafted.

        Logits are spread before any softmax, so that q is a law.
        """
        if self.config.draft_vocabulary is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.config.vocabulary), -torch.inf)
        return whole.index_copy(-1, self.draft_ids, logits)

    @property
    def output_head(self) -> Callable[[Tensor], Tensor]:
        """The drafter's own output head, or the target's."""
        return self.lm_head if self.lm_head is not None else self._loan().head

    @property
    def draft_ids(self) -> Tensor:
        """Target ids of the draft vocabulary; `d2t` holds their offsets."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def embedded_rows(self, tokens: Tensor) -> Tensor:
        """Embeddings `[B, block, hidden]` of blocks `[B, block]`: anchors' tokens followed by mask tokens."""
        rows = functional.embedding(tokens, self.embedding_table).to(self.fc.weight.dtype)
        if self.mask_embedding is not None:
            rows[:, 1:] = self.mask_embedding
        return rows * self.config.embedding_scale if self.config.embedding_scale != 1.0 else rows

    @property
    def embedding_table(self) -> Tensor:
        """`[vocabulary, hidden]`, the drafter's own or the target's."""
        return self._loan().embedding if self.embed_tokens is None else self.embed_tokens.weight

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Embeddings `[B, A, block, hidden]` of the anchors' tokens, each followed by mask tokens."""
        table = self.embedding_table
        first = table[tokens][..., None, :]
        mask = table[self.config.mask_token] if self.mask_embedding is None else self.mask_embedding
        rest = mask.to(first.dtype).expand(*tokens.shape, self.config.block_size - 1, -1)
        rows = torch.cat([first, rest], dim=-2).to(self.fc.weight.dtype)
        return rows * self.config.embedding_scale if self.config.embedding_scale != 1.0 else rows

    def _rotation(self, rows: Tensor, positions: Tensor) -> Rotation:
        return Rotation(*self.rotary(rows, positions))

    def _loan(self) -> Borrowed:
        if self._borrowed is None:
            raise RuntimeError("this drafter borrows the target's tables: call borrow first")
        return self._borrowed


def _rotary_config(config: BlockConfig) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.heads,
        head_dim=config.head_dim,
        rope_parameters=dict(config.rope),
    )
