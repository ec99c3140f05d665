"""Drafts of z-lab's DFlash 1 and 2, several rounds with a growing cache; run by `make parity`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from peer_vectors import HIDDEN, VOCABULARY, randomise, table, write
from transformers import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

COMMITS = (6, 1, 4, 2, 3)
COMMON = {
    **{"hidden_size": HIDDEN, "intermediate_size": 20, "vocab_size": VOCABULARY, "num_target_layers": 6},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5},
    **{"block_size": 4, "tie_word_embeddings": False, "use_sliding_window": True},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 2000.0}},
}
FULL, SLIDING = "full_attention", "sliding_attention"
CASES = {
    "full": {"layer_types": [FULL, FULL], "taps": [0, 2]},
    "mixed": {
        **{"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 3, "block_size": 6, "taps": [4]},
        **{"num_attention_heads": 3, "num_key_value_heads": 1},
    },
    "symmetric": {
        **{"layer_types": [SLIDING, SLIDING], "sliding_window": 4, "is_causal": False, "block_size": 5},
        **{"taps": [1, 3, 5]},
        "draft": {"output_multiplier": 0.7, "final_logit_softcapping": 3.0, "input_embedding_scale": 1.5},
    },
    "causal": {
        **{"layer_types": [FULL, FULL], "is_causal": True, "attention_bias": True, "block_size": 2},
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
    "two": {
        **{"layer_types": [SLIDING, SLIDING], "sliding_window": 7, "is_causal": False, "block_size": 6},
        "draft": {
            **{"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 6},
        },
    },
    "two-wide": {
        **{"layer_types": [FULL], "block_size": 5},
        "draft": {
            **{"conv_kernel_size": 3, "conv_group_size": 24, "selector_rank": 3, "selector_top_k": 9},
            **{"final_logit_softcapping": 4.0},
        },
    },
}


def build(name):
    case = dict(COMMON) | CASES[name]
    taps, draft = case.pop("taps", [0, 3]), case.pop("draft", {})
    config = Qwen3Config(**case, num_hidden_layers=len(case["layer_types"]))
    config.dflash_config = {"mask_token_id": VOCABULARY - 1, "target_layer_ids": taps} | draft
    kind = DFlash2DraftModel if "selector_rank" in draft else DFlashDraftModel
    model = kind(config).eval()
    randomise(model, seed=len(name))
    return model


@torch.inference_mode()
def rounds(model):
    """Every round's anchor, the tokens before each draft, and log q."""
    embedding, head = table(), torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    head.weight.data = table()
    draft = model.config.dflash_config
    size, taps = model.block_size, len(model.target_layer_ids)
    states = torch.randn(1, sum(COMMITS), taps * HIDDEN).bfloat16().float()
    anchors = torch.tensor(COMMITS).cumsum(0)
    tokens = torch.randint(0, VOCABULARY - 1, (len(COMMITS),))
    cache, start, before, law = DynamicCache(config=model.config), 0, [], []
    cache.activate_past_recording()
    for anchor, token in zip(anchors.tolist(), tokens, strict=True):
        ids = torch.tensor([[int(token), *[VOCABULARY - 1] * (size - 1)]])
        hidden = model(
            target_hidden=states[:, start:anchor],
            noise_embedding=embedding[ids] * draft.get("input_embedding_scale", 1.0),
            position_ids=torch.arange(start, anchor + size)[None],
            past_key_values=cache,
            use_cache=True,
        )[:, 1:]
        cache.crop(-size)
        if isinstance(model, DFlash2DraftModel):
            path, candidates, q = model.propose(hidden, ids[:, 0], head, 1.0)
            scores = torch.full((1, size - 1, VOCABULARY), -torch.inf).scatter(-1, candidates, q.log())
        else:
            scores = model.compute_logits(hidden, head).log_softmax(-1)
            path = scores.argmax(-1)
        before.append(torch.cat([ids[:, :1], path[:, :-1]], dim=1))
        law.append(scores)
        start = anchor
    inputs = {"taps": states[0], "anchors": anchors, "embedding": embedding, "head": head.weight.data}
    return inputs | {"before": torch.cat(before)}, {"log_q": torch.cat(law)}


for name in CASES:
    drafter = build(name)
    write(Path(sys.argv[1]) / f"zlab-{name}.safetensors", "dflash", drafter, *rounds(drafter))
