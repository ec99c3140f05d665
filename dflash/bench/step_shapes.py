"""The models, with random weights, whose steps are compared, and the goals for them on one H200."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from dflash.drafters.block.config import BlockConfig, LayerMask, Slots
from dflash.drafters.block.model import BlockDrafter, Borrowed

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_MODELS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    },
    "llama-3.2-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3 | {"factor": 32.0},
    },
    "llama-3.1-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_parameters": _LLAMA3 | {"factor": 8.0},
    },
}  # fmt: skip


class StepShape(NamedTuple):
    """One step: a drafted tree verified, or a block drafted with its head, for one request."""

    kind: str
    model: str
    context: int
    nodes: int
    """Drafted nodes verified beside the anchor; for `draft`, rows of the block."""
    goal_us: float | None
    """None where the goal is 1.35 times the floor."""
    ambition_us: float | None = None

    @property
    def name(self) -> str:
        """How the shape is printed."""
        return f"{self.kind} {self.model} ctx{self.context} n{self.nodes}"


SHAPES = (
    StepShape("verify", "smollm2-135m", 512, 16, 700, 500),
    StepShape("verify", "smollm2-135m", 4096, 16, 900, 600),
    StepShape("draft", "smollm2-135m", 512, 8, 150, 100),
    StepShape("verify", "llama-3.2-1b", 4096, 16, None),
    StepShape("verify", "llama-3.1-8b", 4096, 16, None),
)
MODELS = tuple(_MODELS)
DRAFT_LAYERS = 3


def make_target(name: str, device: str, dtype: torch.dtype, **changes: Any) -> Any:
    """A model of this shape with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(**_MODELS[name] | {"max_position_embeddings": 131_072} | changes)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def make_drafter(target: Any, block: int, layers: int = DRAFT_LAYERS, **changes: Any) -> BlockDrafter:
    """A block drafter as wide as the target, with the target's head; `changes` of its configuration."""
    text = target.config
    chosen = {
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "heads": text.num_attention_heads,
        "kv_heads": text.num_key_value_heads,
        "head_dim": text.head_dim,
        "layers": (LayerMask(),) * layers,
        "target_hidden_size": text.hidden_size,
        "taps": (1, text.num_hidden_layers // 2, text.num_hidden_layers - 1),
        "vocabulary": text.vocab_size,
        "block_size": block,
        "mask_token": 0,
        "slots": Slots.NEXT,
    } | changes
    with torch.device(target.device):
        drafter = BlockDrafter(BlockConfig(**chosen))
    drafter.borrow(Borrowed.of(target))
    return drafter.to(target.dtype).eval().requires_grad_(False)
