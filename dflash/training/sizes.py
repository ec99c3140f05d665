"""From a target and a few wishes to the configuration of its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.drafters.block.config import BlockConfig, Confidence, LayerMask, Markov, Slots
from dflash.errors import UsageError
from dflash.target.load import Target
from dflash.training.script import Headers
from dflash.training.settings import DrafterSettings

_TAPS = 5


def block_config(target: Target, wanted: DrafterSettings) -> BlockConfig:
    """Layers of the target's sizes; `dflash` predicts in place, `dspark` the next position.

    Raises:
        UsageError: A tap or the mask token is none of the target's.
    """
    config = target.model.config.get_text_config()
    spark = wanted.family == "dspark"
    taps = wanted.taps or usual_taps(config.num_hidden_layers)
    # the last index is after the final norm, which loaders disagree about
    if max(taps) >= config.num_hidden_layers or min(taps) < 1:
        raise UsageError(
            f"Expected taps from 1 to {config.num_hidden_layers - 1}, found {', '.join(map(str, taps))}."
        )
    return BlockConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        layers=(LayerMask(),) * wanted.layers,
        target_hidden_size=config.hidden_size,
        taps=tuple(taps),
        vocabulary=config.vocab_size,
        block_size=wanted.drafts + (0 if spark else 1),
        mask_token=mask_token(target, wanted.mask_token),
        slots=Slots.NEXT if spark else Slots.IN_PLACE,
        norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope=dict(config.rope_parameters),
        markov=Markov("vanilla", wanted.markov_rank) if spark and wanted.markov_rank else None,
        confidence=Confidence(with_markov=bool(wanted.markov_rank)) if spark else None,
    )


def usual_taps(layers: int, count: int = _TAPS) -> tuple[int, ...]:
    """An even spread over outputs of the layers 1 to L - 3, as `hidden_states` indices (DFlash)."""
    if layers < 4 + count:
        return tuple(range(1, layers)) or (1,)
    return tuple(1 + round(1 + place * (layers - 4) / (count - 1)) for place in range(count))


def mask_token(target: Target, wanted: int | None) -> int:
    """The id for "to be drafted": a row beyond the tokenizer, or a special token that no conversation has.

    Raises:
        UsageError: There is none, or the one asked for is no id of the target.
    """
    vocabulary = int(target.model.config.get_text_config().vocab_size)
    if wanted is not None:
        if not 0 <= wanted < vocabulary:
            raise UsageError(f"Expected a mask token below {vocabulary}, found {wanted}.")
        return wanted
    if len(target.tokenizer) < vocabulary:
        return len(target.tokenizer)
    free = _unused_special(target.tokenizer, target.eos)
    if not free:
        raise UsageError("Expected a special token that no text has, found none; name one by --mask-token.")
    return max(free)


def _unused_special(tokenizer: Any, eos: Sequence[int] | frozenset[int]) -> set[int]:
    headers = Headers.of(tokenizer)
    used = {*headers.opening, *headers.after_user, *headers.after_answer, *eos}
    # a pad token is often the end token, and some engines treat it as no token at all
    used |= {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    return {token for token, kind in tokenizer.added_tokens_decoder.items() if kind.special} - used
