"""Recordings with all hidden states are a training set: the same states, tokens and opinions of a target."""

from __future__ import annotations

import json

import pytest
import torch

from dflash.cli.main import run
from dflash.draftfile.identity import IdentityMismatch
from dflash.target.load import load_target
from dflash.training.draft_files import RecordedTexts
from dflash.training.errors import NoFeatures, TooFewRequests
from dflash.training.settings import TextSettings

COUNT = 40


def quiet(stage, share):
    """Say nothing."""


@pytest.fixture(scope="module")
def record(tiny_folder, tmp_path_factory):
    """record(*words) -> the file of a recording of short prompts."""
    folder = tmp_path_factory.mktemp("runs")
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(f"Say {word}." for word in range(COUNT)), encoding="utf-8")

    def made(name, *words, prompts=prompts):
        path = folder / name
        shape = ["--max-new-tokens", "30", "--length", "3", "--branches", "2", "-q"]
        place = ["--target", str(tiny_folder), "--prompts", str(prompts), "-o", str(path)]
        assert run(["record", *place, *shape, *words]) == 0
        return path

    return made


@pytest.fixture(scope="module")
def recorded(record):
    return record("all.parquet", "--features", "all")


def test_texts_are_what_was_recorded_with_the_states_of_a_plain_forward(tiny, recorded):
    texts = RecordedTexts([recorded], tiny, TextSettings(length=80))
    corpus = texts.training(0, None, quiet)
    assert len(corpus.tokens) == COUNT - COUNT // 8
    with torch.inference_mode():
        plain = tiny.model(input_ids=corpus.tokens, output_hidden_states=True, use_cache=False)
    wanted = torch.cat([plain.hidden_states[tap] for tap in texts.taps], -1)
    known = corpus.taps.abs().sum(-1) > 0
    # all but the last committed token must have gone through the target
    assert bool(known[corpus.own.cumsum(-1) < corpus.own.sum(-1, keepdim=True)].all())
    torch.testing.assert_close(corpus.taps[known], wanted[known], atol=1e-2, rtol=1e-2)
    before = corpus.own[:, 1:]
    places = torch.arange(corpus.length - 1).expand(len(corpus.tokens), -1)
    logits = corpus.opinions.at(torch.arange(len(corpus.tokens)), places).logits(slice(None))
    logits = logits.view(*places.shape, -1)
    assert torch.equal(logits.argmax(-1)[before], corpus.tokens[:, 1:][before])
    best = logits[before].topk(16).values
    torch.testing.assert_close(best, plain.logits[:, :-1][before].topk(16).values, atol=1e-3, rtol=1e-3)


def test_states_in_eight_bits_are_learned_from_as_those_in_sixteen(tiny, record, recorded):
    """Each is half a step away at most: of the largest in 128, a 254th."""
    small = record("int8.parquet", "--features", "all", "--feature-dtype", "int8")
    texts = [RecordedTexts([path], tiny, TextSettings(length=80)) for path in (recorded, small)]
    whole, coded = (each.held_out(quiet) for each in texts)
    assert torch.equal(whole.tokens, coded.tokens)
    peak = whole.taps.abs().amax(-1, keepdim=True)
    assert bool(((whole.taps - coded.taps).abs() <= peak / 254 + whole.taps.abs() / 256).all())
    assert not torch.equal(whole.taps, coded.taps)


def test_a_recording_with_all_states_is_whole(recorded):
    assert run(["doctor", str(recorded), "--deep", "-q"]) == 0
    assert run(["replay", str(recorded), "--check", "-q"]) == 0


def test_a_drafter_learns_from_recordings(tiny_folder, recorded, tmp_path, capsys):
    words = ["train", "--family", "dspark", "--target", str(tiny_folder), "--draft-files", str(recorded)]
    words += ["--layers", "1", "--drafts", "3", "--step-texts", "8", "--anchors", "10", "--rate", "0.05"]

    def tau(steps, folder):
        assert run([*words, "--steps", str(steps), "-o", str(tmp_path / folder), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["tau"]["held-out texts"]["tau"]

    assert tau(1, "untrained") < 1.4
    assert tau(80, "trained") > 1.6


def test_files_that_cannot_be_learned_from_are_refused(tiny, other_folder, record, recorded, tmp_path):
    settings = TextSettings()
    with pytest.raises(NoFeatures, match="--features all"):
        RecordedTexts([record("fingerprints.parquet")], tiny, settings)
    with pytest.raises(IdentityMismatch, match="target weights"):
        RecordedTexts([recorded], load_target(str(other_folder)), settings)
    few = tmp_path / "few.txt"
    few.write_text("Hello", encoding="utf-8")
    with pytest.raises(TooFewRequests):
        RecordedTexts([record("few.parquet", "--features", "all", prompts=few)], tiny, settings)


@pytest.mark.parametrize("kind", ["few", "fingerprints", "taps", "resume", "missing"])
def test_what_is_refused_leaves_no_folder(tiny_folder, record, recorded, tmp_path, capsys, kind):
    few = tmp_path / "few.txt"
    few.write_text("Hello", encoding="utf-8")
    file = {
        "few": lambda: record("one.parquet", "--features", "all", prompts=few),
        "fingerprints": lambda: record("prints.parquet"),
        "missing": lambda: tmp_path / "missing.parquet",
    }.get(kind, lambda: recorded)()
    more = {"taps": ["--taps", "0"], "resume": ["--resume"]}.get(kind, [])
    words = ["train", "--family", "dspark", "--target", str(tiny_folder), "--draft-files", str(file)]
    words += ["--layers", "1", "--steps", "1"]
    assert run([*words, "-o", str(tmp_path / "new" / "trained"), *more]) == 2
    told = capsys.readouterr().err
    assert "error: " in told
    assert "--family" not in told
    assert not (tmp_path / "new").exists()
