"""Turn a GGUF file into a model folder: dense weights through transformers, the tokenizer by ourselves.

`python -m dflash.target.gguf FILE FOLDER` converts in a process of its own, a line of stdout a step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from dflash.target.errors import ModelNotConverted

_CONTROL = 3  # gguf's token type of special tokens
_SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}


def dense_model(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load a GGUF's weights unpacked.

    transformers 5.17 and newer can keep them packed, in modules that have no plain weights to
    fingerprint or save; older versions always unpack.
    """
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype, **options)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def byte_level_tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a GGUF with byte-level BPE in the `smollm` manner.

    transformers drops the splitting of digits, which changes how "\\n\\n 5" is cut, and takes other
    special tokens from one version to the next; so would the tokenizer's digest.

    Raises:
        ModelNotConverted: The file has another kind of tokenizer.
    """
    kind = (_field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelNotConverted(f"expected a tokenizer gpt2/smollm, found {'/'.join(map(str, kind))}")
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = _field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    named = {
        f"{role}_token": tokens[_field(reader, f"tokenizer.ggml.{key}_token_id")]
        for key, role in _SPECIAL.items()
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named)
    fast.chat_template = _field(reader, "tokenizer.chat_template")
    return fast


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ModelNotConverted(f"expected the GGUF key {key}, found none")
    return field.contents()


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF file as bf16 safetensors, configs, tokenizer and chat template.

    Args:
        path: The GGUF file.
        folder: A new folder.
    """
    _step(0.0, "Reading the tokenizer")
    tokenizer = byte_level_tokenizer(GGUFReader(path))
    _step(0.3, "Unpacking the weights")
    model = dense_model(path, torch.bfloat16)
    _step(0.9, "Writing the model folder")
    folder.mkdir()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _step(fraction: float, what: str) -> None:
    print(f"{fraction} {what}", flush=True)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
