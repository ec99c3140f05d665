"""Public checkpoint layouts: recognised by what they hold, normalised to one convention, refused in full."""

from __future__ import annotations

import json

import block_models
import draft_runs
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tiny_model import byte_tokenizer
from tokenizers import AddedToken

from dflash.cli.main import app
from dflash.drafters.block.config import LayerMask, Slots
from dflash.drafters.build import DraftTooLong, TooFewCandidates, default_length, parse_drafter
from dflash.drafters.checkpoint.errors import CheckpointRefused, CheckpointUnreadable, UnknownLayout
from dflash.drafters.checkpoint.files import open_checkpoint
from dflash.drafters.checkpoint.layouts import recognise, renamed, spread_taps
from dflash.drafters.checkpoint.read import read_block, read_drafts
from dflash.drafters.checkpoint.write import write_block
from dflash.target.errors import NoSuchModel

BACKBONE = {
    **{"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "vocab_size": 264},
    **{"rope_theta": 1e4, "hidden_act": "silu"},
}


def write(tiny, folder, kind="dflash", **given):
    """A random drafter of a kind as a folder, in the layout that the toolkit writes."""
    write_block(block_models.drafter(tiny.model, kind, **given), folder, 2)
    return folder


def edit(folder, change=None, tensors=None):
    """Rewrite a checkpoint's configuration and tensors."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(change(config) if change else config))
    stored = load_file(folder / "model.safetensors")
    save_file(tensors(stored) if tensors else stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def normalised(folder):
    """Name of the layout and the configuration, without any target."""
    checkpoint = open_checkpoint(str(folder))
    layout = recognise(checkpoint.config, checkpoint.tensors)
    config, mismatches = layout.read(checkpoint.config, renamed(checkpoint.tensors))
    assert mismatches == []
    return layout.name, config


@pytest.mark.parametrize("kind", block_models.KINDS)
def test_what_is_written_is_read_whatever_its_architecture_is_called(tiny, tmp_path, kind):
    model = block_models.drafter(tiny.model, kind)
    write_block(model, tmp_path, 2)
    edit(tmp_path, lambda config: config | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    found = read_block(str(tmp_path), tiny, model.config.family)
    assert found.model.config == model.config
    stored = model.state_dict()
    assert all(torch.equal(stored[name], value) for name, value in found.model.state_dict().items())
    assert (
        found.identity["layout"]
        == {
            "dflash": "z-lab",
            "dflash-wide": "z-lab",
            "dflash2": "z-lab",
            "dspark": "SpecForge DSpark",
            "dspark-gated": "SpecForge DSpark",
            "dspark-rnn": "DeepSpec",
        }[kind]
    )


def zlab(tensors, **nested):
    config = BACKBONE | {"block_size": 5, "num_target_layers": 8}
    return config | {"dflash_config": {"mask_token_id": 9, "target_layer_ids": [-1, 0, 4]} | nested}


def test_taps_become_indices_of_hidden_states(tiny, tmp_path):
    """z-lab and DeepSpec name outputs of layers, speculators the inputs."""
    folder = write(tiny, tmp_path / "a")
    edit(folder, lambda config: zlab(config))
    assert normalised(folder)[1].taps == (0, 1, 5)
    edit(folder, lambda config: BACKBONE | {"block_size": 5, "mask_token_id": 9, "num_target_layers": 8})
    assert normalised(folder)[1].taps == tuple(layer + 1 for layer in spread_taps(8, 2))
    own = write(tiny, tmp_path / "b", "dspark-rnn")
    edit(own, lambda config: config | {"target_layer_ids": [0, 3]})
    assert normalised(own)[1].taps == (1, 4)
    edit(folder, lambda config: speculators())
    assert normalised(folder)[1].taps == (2, 3)


@pytest.mark.parametrize(
    ("layers", "drafter_layers", "ids"),
    [(36, 5, [1, 9, 17, 25, 33]), (64, 5, [1, 16, 31, 46, 61]), (24, 5, [1, 6, 11, 16, 21]), (30, 1, [15])],
)
def test_default_taps_are_those_of_the_published_drafters(layers, drafter_layers, ids):
    assert spread_taps(layers, drafter_layers) == ids


def speculators(**given):
    layers = BACKBONE | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    facts = {"block_size": 4, "mask_token_id": 9, "aux_hidden_state_layer_ids": [2, 3]}
    kind = {"speculators_model_type": "dflash", "draft_vocab_size": 264}
    return facts | kind | {"transformer_layer_config": layers} | given


def test_slots_are_those_of_the_layout(tiny, tmp_path):
    plain, heads = write(tiny, tmp_path / "a"), write(tiny, tmp_path / "b", "dspark")
    own = write(tiny, tmp_path / "c", "dspark-rnn")

    def slots(folder, config=None):
        edit(folder, None if config is None else lambda _: config)
        name, found = normalised(folder)
        assert found.drafts == found.block_size - (found.slots is Slots.IN_PLACE)
        return name, found.slots

    assert slots(heads) == ("SpecForge DSpark", Slots.NEXT)
    assert slots(own) == ("DeepSpec", Slots.NEXT)
    assert slots(plain) == ("z-lab", Slots.IN_PLACE)
    assert slots(plain, zlab(None, shift_label=True)) == ("z-lab", Slots.NEXT)
    assert slots(plain, speculators()) == ("speculators", Slots.IN_PLACE)
    assert slots(plain, speculators(sample_from_anchor=True)) == ("speculators", Slots.NEXT)
    assert slots(plain, speculators(speculators_model_type="dspark")) == ("speculators", Slots.NEXT)
    deepspec = BACKBONE | {"block_size": 5, "mask_token_id": 9, "target_layer_ids": [1], "markov_rank": 0}
    assert slots(plain, deepspec) == ("DeepSpec", Slots.NEXT)


def test_windows_are_those_of_the_layout(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a")
    types = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}

    def layers(config):
        edit(folder, lambda _: config)
        return normalised(folder)[1].layers

    assert layers(zlab(None) | types) == (LayerMask(6, True), LayerMask())
    assert layers(zlab(None) | types | {"is_causal": False}) == (LayerMask(6), LayerMask())
    assert layers(zlab(None, causal=True) | types) == (LayerMask(6, True), LayerMask(causal=True))
    assert layers(zlab(None, use_swa=True, swa_window_size=3, causal=False)) == (LayerMask(3),) * 2
    assert layers(speculators()) == (LayerMask(7, True, from_anchor=True), LayerMask())
    wide = speculators(sliding_window_non_causal=True)
    assert layers(wide) == (LayerMask(7, from_anchor=True), LayerMask())


def test_old_names_of_tensors_are_understood(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a", "dspark")
    expected = read_block(str(folder), tiny).model.state_dict()
    heads = ("markov_head", "confidence_head")
    edit(
        folder,
        tensors=lambda stored: {
            f"logit_head.{name}" if name.startswith(heads) else name: value for name, value in stored.items()
        },
    )
    found = read_block(str(folder), tiny).model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    codebooks = write(tiny, tmp_path / "b", "dflash2")
    edit(
        codebooks,
        tensors=lambda stored: {
            f"{name}.weight" if name.endswith("codebook") else name: value for name, value in stored.items()
        },
    )
    assert read_block(str(codebooks), tiny).model.config.selector is not None


def test_shards_and_pickles_are_read(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a")
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(stored, folder / "pytorch_model.bin")
    first = read_block(str(folder), tiny)
    assert read_drafts(str(folder)) == 4
    (folder / "pytorch_model.bin").unlink()
    names = sorted(stored)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: stored[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_block(str(folder), tiny).identity == first.identity


def test_a_reduced_draft_vocabulary_is_spread_before_any_softmax(tiny, tmp_path):
    """q over the target's vocabulary sums to 1, and is -inf where nothing can be drafted."""
    folder = write(tiny, tmp_path / "a")
    ids = torch.arange(0, 264, 6)

    def reduced(stored):
        tables = {"d2t": ids - torch.arange(len(ids)), "lm_head.weight": torch.randn(len(ids), 64)}
        return stored | tables | {"t2d": torch.zeros(264, dtype=torch.bool).index_fill(0, ids, True)}

    edit(folder, lambda _: speculators(draft_vocab_size=len(ids), aux_hidden_state_layer_ids=[1, 2]), reduced)
    given = {"drafter": f"dflash:{folder}", "length": 3, "branches": 1, "dense": True, "max_new_tokens": 5}
    given |= {"temperature": 1.0, "draft_top_k": 0, "store_topk": len(ids)}
    table = draft_runs.rows(draft_runs.record(tiny, draft_runs.prompts(1), tmp_path / "r.parquet", **given))
    drafted = [row for row in table if row["node_token"]]
    assert drafted
    for row in drafted:
        assert {*row["node_token"], *row["draft_topk_token"]} <= set(ids.tolist())
        logits = torch.tensor(row["draft_topk_logit"]).view(-1, len(ids)).double()
        assert logits.logsumexp(-1).tolist() == pytest.approx(row["draft_lse"][:-1], abs=1e-4)
    edit(folder, tensors=lambda stored: stored | {"d2t": torch.full((len(ids),), 263)})
    with pytest.raises(CheckpointRefused, match="d2t"):
        read_block(str(folder), tiny)


def test_every_mismatch_is_listed(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a", "dflash", taps=(1, 2))
    nested = {"mask_token_id": 900, "target_layer_ids": [0, 6]}
    change = {"vocab_size": 300, "num_target_layers": 7, "target_hidden_size": 32, "dflash_config": nested}

    def damaged(stored):
        kept = {name: value for name, value in stored.items() if name != "norm.weight"}
        return kept | {"layers.0.self_attn.sinks": torch.zeros(4), "hidden_norm.weight": torch.ones(3)}

    edit(folder, lambda config: config | change, damaged)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|extra|>", special=True)])
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointRefused) as refused:
        read_block(str(folder), tiny, "dspark")
    lines = refused.value.mismatches
    expected = {
        "expected norm.weight [64], found none",
        "expected hidden_norm.weight [64], found [3]",
        "layers.0.self_attn.sinks [4] belongs to nothing",
        "fc.weight [64, 64], found [64, 128]",
        "hidden size: expected 32, found 64",
        "vocabulary: expected 300, found 264",
        "mask token: expected an id from 0 to 263, found 900",
        "layers: expected a target of 7, found 2",
        "taps: expected hidden states [7], found 0 to 2",
        "tokenizer: the one beside the weights",
        "family: expected dspark, found dflash",
    }
    assert {words for words in expected if any(words in line for line in lines)} == expected
    assert len(lines) == len(expected)
    assert all(line in str(refused.value) for line in lines)


def test_every_missing_or_strange_fact_is_listed(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a")
    dropped = ("hidden_size", "rms_norm_eps", "block_size")
    strange = {"hidden_act": "gelu", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0}}
    nested = {"projector_type": "domino", "attention_sink_bias": True, "use_aux_hidden_state": False}

    def change(config):
        kept = {name: value for name, value in config.items() if name not in dropped}
        return kept | strange | {"dflash_config": config["dflash_config"] | nested}

    edit(folder, change)
    with pytest.raises(CheckpointRefused) as refused:
        read_block(str(folder), tiny)
    for name in (*dropped, "hidden_act", "rope_type", *nested):
        assert any(name in line for line in refused.value.mismatches), name


def test_what_is_no_block_drafter_is_refused(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a")
    for words, error in (("pickle", CheckpointUnreadable), ("{", CheckpointUnreadable)):
        (folder / ("model.safetensors" if words == "pickle" else "config.json")).write_text(words)
        with pytest.raises(error):
            read_block(str(folder), tiny)
        write(tiny, folder)
    edit(folder, tensors=lambda stored: {"midlayer.weight": torch.zeros(1)})
    with pytest.raises(UnknownLayout, match="midlayer"):
        read_block(str(folder), tiny)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointUnreadable, match="neither"):
        read_block(str(folder), tiny)
    with pytest.raises(NoSuchModel):
        read_block(str(tmp_path / "nothing"), tiny)


def test_a_draft_is_at_most_a_block(tiny, tmp_path):
    folder = write(tiny, tmp_path / "a")
    name = f"dflash:{folder}"
    assert default_length(parse_drafter(name)) == default_length(parse_drafter(f"ngram+{name}")) == 4
    assert default_length(parse_drafter("ngram")) == 5
    with pytest.raises(DraftTooLong, match="at most 4"):
        draft_runs.session(tiny, tmp_path / "x.parquet", drafter=name, length=5)
    selective = f"dflash:{write(tiny, tmp_path / 'b', 'dflash2')}"
    with pytest.raises(TooFewCandidates, match="at most 16"):
        draft_runs.session(tiny, tmp_path / "x.parquet", drafter=selective, length=4, store_topk=32)


def test_record_takes_a_whole_block_where_no_length_is_asked_for(tiny_folder, tiny, tmp_path):
    folder = write(tiny, tmp_path / "drafter")

    def run(*more):
        words = ["record", "Hi", "--target", str(tiny_folder), "--drafter", f"dflash:{folder}", *more]
        words += ["-o", str(tmp_path / "run.parquet"), "--overwrite", "--max-new-tokens", "4", "--raw"]
        return CliRunner().invoke(app, words, standalone_mode=False)

    assert run().exception is None
    table = draft_runs.rows(tmp_path / "run.parquet")
    assert {row["draft_length"] for row in table if row["kind"] == 0} == {4}
    refused = run("--length", "5").exception
    assert isinstance(refused, DraftTooLong)
    edit(folder, lambda config: config | {"num_target_layers": 9})
    assert isinstance(run().exception, CheckpointRefused)


def test_layouts_that_cannot_say_it_are_not_written(tiny, tmp_path):
    def refused(**given):
        with pytest.raises(ValueError, match="layout|own"):
            write(tiny, tmp_path / "a", **given)

    refused(layers=(LayerMask(3), LayerMask(4)))
    refused(layers=(LayerMask(3, True), LayerMask(None, True), LayerMask(3)))
    refused(layers=(LayerMask(3, from_anchor=True),))
    refused(own_head=True)
    refused(own_head=True, own_embedding=True)
    refused(kind="dspark", layers=(LayerMask(3),))
