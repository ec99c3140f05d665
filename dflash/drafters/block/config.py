"""What a block drafter is made of, in one convention for every checkpoint layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

MarkovKind = Literal["vanilla", "gated", "rnn"]


class Slots(StrEnum):
    """Which position slot i of a block at anchor a predicts."""

    # position a + i: slot 0 is the anchor itself, and unused
    IN_PLACE = "in-place"
    # position a + i + 1
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class LayerMask:
    """What a block row of one layer sees beside itself: the context before its anchor and its own block.

    Attributes:
        window: keys at a distance below this, in both directions; None for all.
        causal: whether a row sees no later row of its block.
        from_anchor: whether the distance to context is the anchor's, and the block is not windowed
            (speculators), instead of the row's own.
    """

    window: int | None = None
    causal: bool = False
    from_anchor: bool = False


@dataclass(frozen=True, slots=True)
class Markov:
    """A low-rank logit bias by the token before (DSpark)."""

    kind: MarkovKind
    rank: int


@dataclass(frozen=True, slots=True)
class Confidence:
    """A head that predicts acceptance; `with_markov` says that it reads the token before, too (DSpark)."""

    with_markov: bool


@dataclass(frozen=True, slots=True)
class Convolution:
    """Grouped dynamic causal convolutions around each sublayer (DFlash 2)."""

    kernel: int
    group: int


@dataclass(frozen=True, slots=True)
class Selector:
    """Pairwise scores among the `top_k` best tokens of each slot (DFlash 2)."""

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Sizes and conventions of a block drafter.

    Attributes:
        layers: one mask a layer.
        rope: transformers' `rope_parameters`.
        target_hidden_size: width of one tap.
        taps: Hugging Face `hidden_states` indices of the target, in the order of `fc`'s inputs.
        vocabulary: rows of the target's output head, padding included.
        draft_vocabulary: tokens that can be drafted; None for all.
        block_size: rows of a block: the anchor and its mask tokens.
        mask_token: id of the target's token that stands for "to be drafted".
        own_embedding, own_head: whether the drafter brings its own table, or borrows the target's.
        own_mask: whether a learned vector takes the place of the mask token's embedding.
        embedding_scale, logit_scale: factors on what is borrowed.
        softcap: bound of the logits by tanh.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerMask, ...]
    target_hidden_size: int
    taps: tuple[int, ...]
    vocabulary: int
    block_size: int
    mask_token: int
    slots: Slots
    norm_eps: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0})
    attention_bias: bool = False
    draft_vocabulary: int | None = None
    own_embedding: bool = False
    own_head: bool = False
    own_mask: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    markov: Markov | None = None
    confidence: Confidence | None = None
    convolution: Convolution | None = None
    selector: Selector | None = None

    @property
    def first_slot(self) -> int:
        """The first slot that drafts."""
        return 1 if self.slots is Slots.IN_PLACE else 0

    @property
    def drafts(self) -> int:
        """Tokens that one block drafts."""
        return self.block_size - self.first_slot

    @property
    def candidates(self) -> int:
        """Tokens that can be drafted at one slot."""
        return self.selector.top_k if self.selector else self.draft_vocabulary or self.vocabulary

    @property
    def family(self) -> str:
        """`dspark` where a head reads the token before or predicts acceptance, else `dflash`."""
        return "dspark" if self.markov or self.confidence else "dflash"

    @property
    def path_dependent(self) -> bool:
        """Whether q at a slot depends on the tokens drafted before it."""
        return bool(self.markov or self.selector)
