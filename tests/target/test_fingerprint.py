"""Digests: what changes a model shows, what does not change it does not, and caches are not fooled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_gguf import TEMPLATE, tiny_llama, vocabulary
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from dflash.target import fingerprint
from dflash.target.fingerprint import (
    config_digest,
    model_identity,
    template_digest,
    tokenizer_digest,
    tokenizer_identity,
    weights_digest,
)


class Tied(torch.nn.Module):
    """Two names for one tensor, a buffer that is stored, one that is not, a scalar and an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.b = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3))
        self.a = self.b
        self.register_buffer("kept", torch.tensor([1, 2], dtype=torch.int64))
        self.register_buffer("derived", torch.ones(3), persistent=False)
        self.scalar = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.empty = torch.nn.Parameter(torch.zeros(0, 4))


def test_the_definition_written_out_by_hand() -> None:
    stored = [
        ("a", "float32", [2, 3], np.arange(6, dtype="<f4")),
        ("empty", "float32", [0, 4], np.zeros(0, dtype="<f4")),
        ("kept", "int64", [2], np.array([1, 2], dtype="<i8")),
        ("scalar", "float64", [], np.array([0.5], dtype="<f8")),
    ]
    expected = hashlib.sha256()
    for name, kind, shape, values in stored:
        expected.update(json.dumps([name, kind, shape]).encode() + b"\n" + values.tobytes())
    assert weights_digest(Tied()) == expected.hexdigest()


def change_a_bit(module: Any) -> None:
    module.b.data.view(torch.uint8).reshape(-1)[5] ^= 1


def change_the_shape(module: Any) -> None:
    module.a = module.b = torch.nn.Parameter(module.b.data.reshape(3, 2))


def change_the_dtype(module: Any) -> None:
    module.a = module.b = torch.nn.Parameter(module.b.data.view(torch.int32), requires_grad=False)


def change_a_name(module: Any) -> None:
    module.c = module.a
    del module.a


def untie(module: Any) -> None:
    module.b = torch.nn.Parameter(module.b.data.clone())


def swap_zero_signs(module: Any) -> None:
    module.b.data[0, 0] = -0.0


CHANGES = [change_a_bit, change_the_shape, change_the_dtype, change_a_name, untie, swap_zero_signs]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_weights_shows(change: Callable[[Any], None]) -> None:
    module = Tied()
    before = weights_digest(module)
    change(module)
    assert weights_digest(module) != before


def test_strides_and_gradients_do_not_show() -> None:
    module = Tied()
    before = weights_digest(module)
    module.a = module.b = torch.nn.Parameter(module.b.data.t().contiguous().t(), requires_grad=False)
    assert weights_digest(module) == before


def test_quantised_tensors_count_as_the_tensors_they_are_made_of() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(32, 16, bias=False))
    quantize_(module, Int8WeightOnlyConfig())
    names = [name for name, _ in fingerprint._stored_tensors(module)]
    assert names
    assert all(name.startswith("0.weight.") for name in names)
    before = weights_digest(module)
    inner = names[0].removeprefix("0.weight.").split(".")
    tensor: Any = module[0].weight
    for part in inner:
        tensor = getattr(tensor, part)
    with torch.no_grad():
        tensor.view(-1)[0] += 1
    assert weights_digest(module) != before


def test_the_config_digest_ignores_versions_and_calls_only() -> None:
    config = LlamaConfig(hidden_size=64, num_hidden_layers=2)
    digest = config_digest(config)
    other = LlamaConfig(hidden_size=64, num_hidden_layers=2)
    other._name_or_path, other.transformers_version, other.dtype = "elsewhere", "9.9", torch.float16
    other._attn_implementation = "eager"
    assert config_digest(other) == digest
    for key, value in {"rms_norm_eps": 1e-5, "num_hidden_layers": 3, "tie_word_embeddings": True}.items():
        changed = LlamaConfig(hidden_size=64, num_hidden_layers=2)
        setattr(changed, key, value)
        assert config_digest(changed) != digest, key


def tokenizer(**changes: Any) -> PreTrainedTokenizerFast:
    tokens = changes.get("tokens", vocabulary())
    merges = changes.get("merges", [("h", "e"), ("l", "l")])
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    made.normalizer = changes.get("normalizer")
    made.pre_tokenizer = changes.get("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.decoder = changes.get("decoder", decoders.ByteLevel())
    made.add_special_tokens(
        [AddedToken(token, special=True) for token in changes.get("special", ["<|im_end|>"])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


DIFFERENT = {
    "tokens": {"tokens": [*vocabulary()[:-2], *vocabulary()[:-3:-1]]},
    "merges": {"merges": [("l", "l"), ("h", "e")]},
    "special": {"special": ["<|im_end|>", "<|im_start|>"]},
    "normalizer": {"normalizer": normalizers.NFC()},
    "pre_tokenizer": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
    "nested": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    },
    "digits": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    },
}


def test_every_change_of_a_tokenizer_shows() -> None:
    digests = {name: tokenizer_digest(tokenizer(**changes)) for name, changes in DIFFERENT.items()}
    digests["unchanged"] = tokenizer_digest(tokenizer())
    assert len(set(digests.values())) == len(digests)


def test_what_changes_no_token_does_not_show(tmp_path: Path) -> None:
    before = tokenizer_digest(tokenizer())
    same = tokenizer(
        normalizer=normalizers.Sequence([]),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False),
    )
    same.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    same.backend_tokenizer.enable_truncation(4)
    same.chat_template = TEMPLATE
    assert tokenizer_digest(same) == before
    same.save_pretrained(tmp_path)
    assert tokenizer_digest(AutoTokenizer.from_pretrained(tmp_path)) == before
    # transformers would add a [PAD] token at loading, so padding comes after it
    same.backend_tokenizer.enable_padding(length=5)
    assert tokenizer_digest(same) == before


def test_the_identity_of_a_tokenizer() -> None:
    with_template = tokenizer()
    with_template.chat_template = TEMPLATE
    facts = tokenizer_identity(with_template, 512)
    assert facts["vocab_size"] == len(vocabulary())
    assert facts["padded_vocab_size"] == 512
    assert facts["template_digest"] == template_digest(with_template)
    assert template_digest(tokenizer()) is None
    other = tokenizer()
    other.chat_template = TEMPLATE + " "
    assert template_digest(other) != facts["template_digest"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model folder whose weights have no cached digest yet."""
    tiny_llama(seed=1).save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def test_the_identity_of_a_model_is_that_of_its_loaded_weights(saved: Path) -> None:
    model = load(saved)
    facts = model_identity("tiny", model, saved)
    assert facts["weights_digest"] == weights_digest(model)
    assert facts["parameter_count"] == sum({id(p): p.numel() for p in model.parameters()}.values())
    assert (facts["name"], facts["dtype"], facts["quantisation"], facts["revision"]) == (
        "tiny",
        "float32",
        None,
        None,
    )
    half = model_identity("tiny", load(saved, torch.bfloat16), saved)
    assert half["dtype"] == "bfloat16"
    assert half["weights_digest"] != facts["weights_digest"]
    assert half["config_digest"] == facts["config_digest"]


def test_a_second_start_hashes_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(saved)
    first = model_identity("tiny", model, saved)
    monkeypatch.setattr(fingerprint, "weights_digest", None)
    assert model_identity("tiny", model, saved) == first


def test_changed_files_are_hashed_again(saved: Path) -> None:
    first = model_identity("tiny", load(saved), saved)
    tiny_llama(seed=2).save_pretrained(saved)
    assert model_identity("tiny", load(saved), saved)["weights_digest"] != first["weights_digest"]


def test_a_file_swapped_under_the_same_size_and_time_fools_only_the_cache(saved: Path) -> None:
    weights = saved / "model.safetensors"
    first = model_identity("tiny", load(saved), saved)["weights_digest"]
    facts = weights.stat()
    tiny_llama(seed=2).save_pretrained(saved / "other")
    weights.write_bytes((saved / "other" / "model.safetensors").read_bytes())
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert weights.stat().st_size == facts.st_size
    swapped = load(saved)
    assert model_identity("tiny", swapped, saved)["weights_digest"] == first
    honest = model_identity("tiny", swapped, saved, trust_cache=False)["weights_digest"]
    assert honest == weights_digest(swapped) != first
    # what was hashed anew is also what the cache says from now on
    assert model_identity("tiny", swapped, saved)["weights_digest"] == honest


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_a_broken_cache_is_no_cache(content: str, saved: Path) -> None:
    (saved / fingerprint.DIGESTS).write_text(content)
    model = load(saved)
    assert model_identity("tiny", model, saved)["weights_digest"] == weights_digest(model)


def test_a_hub_id_has_no_folder_to_cache_in() -> None:
    model = tiny_llama()
    assert model_identity("org/tiny", model, None)["weights_digest"] == weights_digest(model)
