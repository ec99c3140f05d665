"""The drafter that comes with the package: whole, described by its card, and used where it fits."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from dflash.cli.main import run
from dflash.drafters import shipped
from dflash.drafters.build import Part, default_length, parse_drafter, shown_name
from dflash.drafters.checkpoint.files import open_checkpoint
from dflash.drafters.checkpoint.fit import tensor_mismatches
from dflash.drafters.checkpoint.layouts import recognise
from dflash.draftfile.reader import open_draft_file
from dflash.training.card import card_text
from dflash.training.settings import TrainSettings

MOST = 25 * 2**20


@pytest.fixture(scope="module")
def card():
    return json.loads((shipped.FOLDER / "card.json").read_text(encoding="utf-8"))


def test_the_name_stands_for_the_folder():
    own = Part("dspark", str(shipped.FOLDER))
    assert parse_drafter("default") == [own]
    assert parse_drafter("default+suffix") == [own, Part("suffix")]
    assert default_length([own]) == 7


def test_what_a_header_calls_it_can_be_typed():
    (part,) = parse_drafter("default")
    assert shown_name(part) == "default"


def test_a_folder_of_the_same_name_is_another_drafter(in_folder):
    (in_folder / "default").mkdir()
    (part,) = parse_drafter("dspark:default")
    assert part.place == "default"
    assert shown_name(part) == "dspark:default"


def test_it_fits_the_default_target_alone(tmp_path):
    assert shipped.fits("default")
    assert shipped.fits("SmolLM2-135M-Instruct")
    assert not shipped.fits(str(tmp_path))


def test_its_files_are_whole_small_and_as_the_card_says(card):
    checkpoint = open_checkpoint(str(shipped.FOLDER))
    layout = recognise(checkpoint.config, checkpoint.tensors)
    config, mismatches = layout.read(checkpoint.config, checkpoint.tensors)
    assert mismatches == []
    assert list(tensor_mismatches(config, checkpoint.tensors)) == []
    assert (config.family, config.drafts, list(config.taps)) == (card["family"], card["drafts"], card["taps"])
    assert sum(tensor.numel() for tensor in checkpoint.tensors.values()) == card["parameters"]
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < MOST
    assert card["tau"]["all"]["tau"] >= 2.0


def test_its_card_names_what_its_command_needs(card):
    """Files by digest, seed and settings: the same command must be able to run again."""
    named = [card["inputs"][name]["name"] for name in ("prompts", "evaluate")]
    assert all(name in card["command"] for name in named)
    assert all(len(card["inputs"][name]["sha256"]) == 64 for name in ("prompts", "evaluate"))
    given = asdict(TrainSettings(seed=card["seed"]))
    assert card["settings"].keys() == given.keys()
    assert all(card["settings"][part].keys() == given[part].keys() for part in ("drafter", "text", "step"))
    text = (shipped.FOLDER / "README.md").read_text(encoding="utf-8")
    assert text.startswith(card_text(card))


def test_another_target_is_told_that_it_drafts_by_lookup(tiny_folder, in_folder, capsys):
    words = ["record", "Hello", "--target", str(tiny_folder), "--max-new-tokens", "4", "-o", "run.parquet"]
    assert run(words) == 0
    assert "drafter: ngram, as the shipped one is for SmolLM2-135M-Instruct" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.network
def test_it_speculates_on_the_default_target(default_target, in_folder, capsys):
    prompts = ["What is the capital of France?", "A pen costs 2 dollars. What do 7 pens cost?"]
    words = ["record", *prompts, "--max-new-tokens", "48", "--branches", "1", "--json", "-o", "run.parquet"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["tau"] > 1.5
    assert open_draft_file("run.parquet").header.drafters[0]["name"] == "default"
    assert run(["replay", "run.parquet", "--check", "-q"]) == 0
