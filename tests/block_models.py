"""Block drafters for the tiny target, as folders in a public layout: random, then fitted for some seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from dflash.drafters.block.config import (
    BlockConfig,
    Confidence,
    Convolution,
    LayerMask,
    Markov,
    Selector,
    Slots,
)
from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.drafters.checkpoint.write import write_block

KINDS: dict[str, dict[str, Any]] = {
    "dflash": {"layers": (LayerMask(6, True), LayerMask())},
    "dflash-wide": {"layers": (LayerMask(4), LayerMask(4)), "block_size": 3, "taps": (1,), "softcap": 20.0},
    "dflash2": {
        "layers": (LayerMask(7), LayerMask(7)),
        "convolution": Convolution(2, 16),
        "selector": Selector(8, 16),
    },
    "dspark": {"markov": Markov("vanilla", 8), "confidence": Confidence(True)},
    "dspark-gated": {"markov": Markov("gated", 8), "confidence": Confidence(False)},
    "dspark-rnn": {
        **{"markov": Markov("rnn", 8), "confidence": Confidence(True)},
        **{"own_embedding": True, "own_head": True},
    },
}


def configuration(target: Any, kind: str, **given: Any) -> BlockConfig:
    """A small drafter of a kind for a transformers model."""
    text = target.config
    chosen = {
        "hidden_size": text.hidden_size,
        "intermediate_size": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "layers": (LayerMask(), LayerMask()),
        "target_hidden_size": text.hidden_size,
        "taps": (1, 2),
        "vocabulary": text.vocab_size,
        "block_size": 5,
        "mask_token": text.vocab_size - 1,
        "slots": Slots.NEXT if kind.startswith("dspark") else Slots.IN_PLACE,
    }
    return BlockConfig(**(chosen | KINDS[kind] | given))


def drafter(target: Any, kind: str, seed: int = 5, **given: Any) -> BlockDrafter:
    """A random drafter; heads that start as nothing are random, too."""
    torch.manual_seed(seed)
    model = BlockDrafter(configuration(target, kind, **given))
    for name, value in model.named_parameters():
        if "base_kernel" in name or "kernel_projection" in name or "codebook" in name:
            value.data += 0.1 * torch.randn_like(value)
        elif "norm" in name:
            value.data = 0.5 + torch.rand_like(value)
        elif "embed" in name or "markov_w" in name:
            value.data *= 0.2
    model.borrow(Borrowed.of(target))
    return model


def fitted(target: Any, kind: str, steps: int = 30, **given: Any) -> BlockDrafter:
    """A drafter that agrees with the target's greedy answers now and then."""
    model = drafter(target, kind, **given)
    tokens = torch.randint(32, 120, (10, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for _ in range(44):
            tokens = torch.cat([tokens, target(tokens).logits[:, -1:].argmax(-1)], dim=1)
        states = target(tokens, output_hidden_states=True).hidden_states
    taps = torch.cat([states[tap] for tap in model.config.taps], dim=-1)
    anchors = torch.arange(6, tokens.shape[1] - model.config.drafts - 1, 3).expand(len(tokens), -1)
    ahead = anchors[..., None] + torch.arange(model.config.drafts)
    texts = tokens[:, None].expand(-1, anchors.shape[1], -1)
    before, after = texts.gather(2, ahead), texts.gather(2, ahead + 1)
    adam = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(steps):
        hidden = model(tokens, taps, anchors)
        logits = model.logits(hidden)
        if model.markov_head is not None:
            logits = logits + model.markov_head.markov_w2(model.markov_head(hidden, before))
        loss = functional.cross_entropy(logits.flatten(0, 2), after.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model


def named(kind: str, folder: Path) -> str:
    """What `--drafter` calls the drafter of a kind in this folder."""
    return f"{'dspark' if kind.startswith('dspark') else 'dflash'}:{folder}"


def write_fitted(target: Any, folder: Path, kind: str, **given: Any) -> Path:
    """A folder that `dflash:FOLDER` or `dspark:FOLDER` reads."""
    write_block(fitted(target, kind, **given), folder, target.config.num_hidden_layers)
    return folder
