"""`--draft-quant`: what runs is what torchao makes of the weights, the header says so, `diff` prices it."""

from __future__ import annotations

import json

import block_models
import draft_runs
import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file
from dflash.errors import UsageError
from dflash.target.errors import UnsupportedQuantisation, UnsupportedWeights
from dflash.target.quantise import group_size, torchao_config

KINDS = ("dflash", "dflash2", "dspark", "dspark-gated", "dspark-rnn")


@pytest.fixture(scope="module")
def places(tiny, other_folder, tmp_path_factory):
    """What `--drafter` calls a drafter of each kind."""
    found = {"model": f"model:{other_folder}"}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("drafters") / kind
        block_models.write_block(block_models.drafter(tiny.model, kind), folder, 2)
        found[kind] = block_models.named(kind, folder)
    return found


@pytest.fixture
def drafter(tiny, tmp_path):
    def made(name, quantisation, **given):
        chosen = {"length": 3, "branches": 2, "draft_quant": quantisation, "store_topk": 8} | given
        return draft_runs.session(tiny, tmp_path / "x.parquet", drafter=name, **chosen).drafter

    return made


def linear_weights(model):
    return {name: layer.weight for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}


def module_of(drafter):
    return drafter.model.model if drafter.family == "model" else drafter.model


@pytest.mark.parametrize("kind", ["model", *KINDS])
def test_the_header_tells_what_runs(drafter, places, kind):
    plain, small, again = (drafter(places[kind], each) for each in ("none", "int8", "int8"))
    before, entry = plain.header(), small.header()
    assert before["quantisation"] is None
    assert entry == again.header()
    assert {key for key in entry if entry[key] != before[key]} == {"quantisation", "weights_digest"}
    told = entry["quantisation"]
    assert (told["method"], told["bits"], told["computed_in"]) == ("torchao", 8, "dequantised")
    assert told["config_parameters"] == {
        key: str(value) for key, value in vars(Int8WeightOnlyConfig()).items()
    }
    assert f" {len(linear_weights(module_of(small)))} linear layers" in told["tensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_own_linear_layers_are_quantised_and_nothing_else(drafter, places, tiny, kind):
    """Weights are rounded by rows to at most 256 values; what is borrowed stays the target's own."""
    before = {name: tensor.clone() for name, tensor in tiny.model.state_dict().items()}
    plain, small = (module_of(drafter(places[kind], each)) for each in ("none", "int8"))
    layers = linear_weights(small)
    for name, value in small.state_dict().items():
        exact = plain.state_dict()[name]
        layer = name.removesuffix(".weight")
        if layer not in layers or name == layer:
            assert torch.equal(value, exact), name
            continue
        step = exact.abs().amax(dim=1, keepdim=True) / 127
        assert bool(((value - exact).abs() <= 0.51 * step).all()), name
        assert max(len(row.unique()) for row in value) <= 256
    assert any(not torch.equal(value, plain.state_dict()[name]) for name, value in small.state_dict().items())
    for one in (plain, small):
        assert one._borrowed.embedding.data_ptr() == tiny.model.get_input_embeddings().weight.data_ptr()
        assert one._borrowed.head is tiny.model.get_output_embeddings()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny.model.state_dict().items())


def test_drafts_are_those_of_the_model_that_torchao_makes(tiny, tmp_path, other_folder):
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(2),
        tmp_path / "run.parquet",
        **{"drafter": f"model:{other_folder}", "draft_quant": "int8", "length": 2, "branches": 1},
        max_new_tokens=12,
    )
    model = tf.AutoModelForCausalLM.from_pretrained(other_folder, dtype=torch.float32).eval()
    quantize_(model, Int8WeightOnlyConfig())
    table = draft_runs.rows(path)
    texts = draft_runs.trunks(table)
    seen = 0
    for row in (row for row in table if row["kind"] == 0):
        tokens = texts[row["request_id"]][: row["anchor_position"] + 1]
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0, -1].topk(16)
        count = len(row["draft_topk_logit"]) // len(row["draft_lse"])
        found = torch.tensor(row["draft_topk_logit"][:count])
        torch.testing.assert_close(found, expected.values[:count], atol=1e-4, rtol=1e-4)
        seen += 1
    assert seen > 4


@pytest.mark.parametrize("method", ["int4", "fp8"])
@pytest.mark.parametrize("kind", ["model", "dflash", "dspark"])
def test_what_needs_cuda_is_refused_on_a_cpu(drafter, places, kind, method):
    with pytest.raises(UnsupportedQuantisation, match=f"{method} weights are not supported on cpu"):
        drafter(places[kind], method)


@pytest.mark.parametrize("name", ["ngram", "suffix", "none", "ngram+suffix", "file:x.parquet"])
def test_drafters_without_a_model_are_refused_before_anything_is_loaded(in_folder, capsys, name):
    words = ["record", "x", "--target", "no-such-target", "--drafter", name, "--draft-quant", "int8"]
    assert run(words) == 2
    assert "Expected --draft-quant with a drafter that is a model" in capsys.readouterr().err
    assert list(in_folder.iterdir()) == []


def test_stored_drafts_are_refused_beside_a_model_too(drafter, places):
    with pytest.raises(UsageError, match="made already"):
        drafter(f"{places['model']}+file:x.parquet", "int8")


def test_self_is_always_int8(drafter):
    assert drafter("self", "none").header() == drafter("self", "int8").header()
    with pytest.raises(UsageError, match="int8 copy, found int4"):
        drafter("self", "int4")


def test_in_a_union_the_models_are_quantised(drafter, places):
    union = drafter(f"{places['dspark']}+suffix+{places['model']}", "int8")
    bits = [entry["quantisation"] and entry["quantisation"]["bits"] for entry in union.headers()]
    assert bits == [8, None, 8]


@pytest.mark.parametrize("kind", ["model", "dspark"])
def test_diff_prices_an_int8_drafter(tiny_folder, places, in_folder, capsys, kind):
    prompts = in_folder / "prompts.txt"
    prompts.write_text("\n".join(draft_runs.prompts(4)))
    for method in ("none", "int8"):
        words = ["--target", str(tiny_folder), "--drafter", places[kind], "--draft-quant", method]
        rest = ["--prompts", str(prompts), "--max-new-tokens", "16", "-o", f"{method}.parquet"]
        assert run(["record", *words, *rest]) == 0
    assert open_draft_file(in_folder / "int8.parquet").header.drafters[0]["quantisation"]["bits"] == 8
    capsys.readouterr()
    assert run(["diff", "none.parquet", "int8.parquet", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["causes"][0].startswith(
        "The drafter's quantisation differs: none in A, torchao with 8 bits in B, and the target is the same."
    )
    taus = []
    for method in ("none", "int8"):
        lengths = [
            len(row["accepted_nodes"])
            for row in draft_runs.rows(in_folder / f"{method}.parquet")
            if row["kind"] == 0
        ]
        taus.append(1 + sum(lengths) / len(lengths))
    assert (
        f"tau {taus[0]:.3f} to {taus[1]:.3f}, {taus[1] - taus[0]:+.3f} (95 % interval" in found["causes"][0]
    )
    assert run(["replay", "int8.parquet", "--check", "-q"]) == 0


@given(widths=st.lists(st.integers(1, 64).map(lambda n: 32 * n), min_size=1, max_size=6))
def test_int4_groups_divide_all_layers_if_any_size_does(widths):
    found = group_size(widths)
    assert all(width % found == 0 for width in widths)
    assert found == 128 or any(width % (2 * found) for width in widths)


def test_int4_of_other_weights_than_bfloat16_is_refused_with_what_to_do():
    with pytest.raises(UnsupportedWeights, match="from bfloat16, .* are float32.*--dtype bfloat16"):
        torchao_config("int4", [torch.nn.Linear(64, 64)])
