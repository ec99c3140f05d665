"""Drafts of the speculators package, many anchors of one text in a forward; run by `make parity`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from peer_vectors import HIDDEN, VOCABULARY, randomise, table, write
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash.config import DFlashSpeculatorConfig
from speculators.models.dflash.core import DFlashDraftModel
from speculators.models.dflash2.config import DFlash2SpeculatorConfig
from speculators.models.dflash2.core import DFlash2DraftModel
from speculators.models.dspark.config import DSparkSpeculatorConfig
from speculators.models.dspark.core import DSparkDraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

LENGTH = 18
LAYERS = {
    **{"hidden_size": HIDDEN, "intermediate_size": 20, "vocab_size": VOCABULARY, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5},
    **{"sliding_window": 3, "use_sliding_window": True},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 2000.0}},
}
FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = {
    "dflash": (DFlashSpeculatorConfig, DFlashDraftModel),
    "dflash2": (DFlash2SpeculatorConfig, DFlash2DraftModel),
    "dspark": (DSparkSpeculatorConfig, DSparkDraftModel),
}
CASES = {
    "dflash": {"kind": "dflash", "types": [SLIDING, FULL], "draft_vocab_size": VOCABULARY},
    "dflash-reduced": {"kind": "dflash", "types": [SLIDING], "draft_vocab_size": 13, "block_size": 6},
    "dflash-next": {
        **{"kind": "dflash", "types": [FULL], "draft_vocab_size": VOCABULARY, "sample_from_anchor": True},
    },
    "dspark-vanilla": {"kind": "dspark", "types": [FULL, FULL], "draft_vocab_size": VOCABULARY},
    "dspark-gated": {
        **{"kind": "dspark", "types": [SLIDING], "draft_vocab_size": 17, "markov_head_type": "gated"},
        **{"sliding_window_non_causal": True, "confidence_head_with_markov": False},
        "sample_from_anchor": False,
    },
    "dspark-rnn": {
        **{"kind": "dspark", "types": [FULL], "draft_vocab_size": VOCABULARY, "markov_head_type": "rnn"},
        "block_size": 5,
    },
    "dflash2": {
        **{"kind": "dflash2", "types": [SLIDING, SLIDING], "draft_vocab_size": VOCABULARY},
        **{"conv_group_size": 8, "selector_rank": 5, "selector_top_k": 6},
    },
}


def build(name):
    case = {"block_size": 4, "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": VOCABULARY - 1}
    case |= CASES[name]
    types = case.pop("types")
    config_class, model_class = KINDS[case.pop("kind")]
    layers = Qwen3Config(**LAYERS, layer_types=types, num_hidden_layers=len(types))
    layers._attn_implementation = "eager"
    if config_class is DSparkSpeculatorConfig:
        case["markov_rank"] = 6
    told = SpeculatorsConfig(
        algorithm=config_class.model_fields["speculators_model_type"].default,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path="none", architectures=["none"]),
    )
    model = model_class(config_class(transformer_layer_config=layers, speculators_config=told, **case)).eval()
    randomise(model, seed=len(name))
    if model.use_draft_vocab:
        ids = torch.randperm(VOCABULARY)[: model.draft_vocab_size].sort().values
        model.d2t.copy_(ids - torch.arange(len(ids)))
        model.t2d.fill_(False).index_fill_(0, ids, True)
    return model


@torch.inference_mode()
def drafts(model):
    """Blocks of every possible anchor, the text's own tokens before each draft."""
    size, count = model.block_size, LENGTH - model.block_size - 1
    embedding, head = table(), model.lm_head.weight.data
    model.embed_tokens.weight.data = embedding
    tokens = torch.randint(0, VOCABULARY - 1, (1, LENGTH))
    taps = torch.randn(1, LENGTH, 2 * HIDDEN).bfloat16().float()
    possible = torch.zeros(1, LENGTH)
    possible[:, 1 : count + 1] = 1
    hidden, logits, _, _, places = model._backbone_forward(
        taps, tokens, possible, torch.zeros(1, LENGTH, HIDDEN), torch.zeros(1, LENGTH, dtype=torch.long),
        max_anchors=count,
    )  # fmt: skip
    places = places.view(count, size)
    first = 0 if model.config.sample_from_anchor else 1
    before = tokens[0, places] if first == 0 else tokens[0, places[:, :1]]
    if first:
        before = torch.cat([before, tokens[0, places[:, :-1]]], dim=1)
    hidden, logits = hidden.view(count, size, -1), logits.view(count, size, -1)
    outputs = {}
    if isinstance(model, DSparkDraftModel):
        known = model.markov_head.prev_embeddings(before)
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
        read = [hidden, known] if model.config.confidence_head_with_markov else [hidden]
        outputs["confidence"] = model.confidence_head(torch.cat(read, dim=-1))[:, first:]
    if isinstance(model, DFlash2DraftModel):
        candidates, scores = model.candidate_selector.select(logits, hidden, before)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, candidates, scores)
    outputs["log_q"] = spread(model, logits.log_softmax(-1))[:, first:]
    order = places[:, 0].argsort()
    inputs = {"taps": taps[0], "anchors": places[order, 0], "embedding": embedding, "head": head}
    inputs["before"] = before[order, first:]
    return inputs, {name: value[order] for name, value in outputs.items()}


def spread(model, law):
    """Over the target's vocabulary."""
    if not model.use_draft_vocab:
        return law
    whole = torch.full((*law.shape[:-1], VOCABULARY), -torch.inf)
    return whole.index_copy(-1, torch.arange(len(model.d2t)) + model.d2t, law)


for name in CASES:
    drafter = build(name)
    path = Path(sys.argv[1]) / f"speculators-{name}.safetensors"
    write(path, "speculators", drafter, *drafts(drafter))
