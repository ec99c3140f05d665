"""The same engine on a GPU: the tokens of the CPU, and recordings that check and walk like any other."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from dflash.cli.main import app
from dflash.target.load import load_target

pytestmark = pytest.mark.gpu

PROMPTS = ("What is a rainbow?", "ab ab ab", "Count: 1 2 3 4", "hello there")


@pytest.fixture(scope="module")
def exact_products():
    """fp32 products in fp32: TF32 would move logits by more than the tie tolerance."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture(scope="module")
def on_gpu(tiny_folder, exact_products):
    return load_target(str(tiny_folder), device="cuda", dtype="float32")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix", "model"])
def test_the_gpu_commits_the_tokens_of_the_cpu(
    tiny, tiny_folder, on_gpu, record, output_tokens, drafter, temperature
):
    name = f"model:{tiny_folder}" if drafter == "model" else drafter
    shared = {"drafter": name, "temperature": temperature, "length": 4, "branches": 2}
    cpu = output_tokens(record(tiny, PROMPTS, **shared))
    for lanes in (1, 3):
        assert output_tokens(record(on_gpu, PROMPTS, lanes=lanes, **shared)) == cpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", ["match", "speculative", "threshold:t=0.7"])
def test_recordings_of_the_gpu_check_and_walk(tiny_folder, exact_products, record, tmp_path, dtype, policy):
    target = load_target(str(tiny_folder), device="cuda", dtype=dtype)
    path = tmp_path / "run.parquet"
    record(
        target,
        PROMPTS,
        path=path,
        drafter=f"model:{tiny_folder}",
        policy=policy,
        temperature=0.8,
        length=4,
        branches=1,
        dense=True,
    )
    for words in (["--check"], ["--policy", policy], ["--policy", "match:length=2"]):
        result = CliRunner().invoke(app, ["replay", str(path), *words], standalone_mode=False)
        assert result.exception is None, result.output
        assert result.return_value in (0, None), result.output


def test_the_header_names_the_device(on_gpu, record, tmp_path):
    from dflash.draftfile.reader import open_draft_file

    path = tmp_path / "run.parquet"
    record(on_gpu, PROMPTS[:1], path=path)
    engine = open_draft_file(path).header.raw["engine"]
    assert engine["device"] == torch.cuda.get_device_name()
    assert engine["attention"] == "sdpa"
