"""Drafters learn: tau rises, a resumed training ends in the same bits, what is exported drafts the same."""

from __future__ import annotations

import functools
import hashlib
import json

import jsonschema
import numpy as np
import pytest
import torch

from dflash.cli.main import run
from dflash.cli.train import train
from dflash.cli.train_run import conversations
from dflash.drafters.checkpoint.read import read_block
from dflash.draftfile.reader import open_draft_file
from dflash.training.checkpoint import load_checkpoint, save_checkpoint
from dflash.training.dialogue import Manners
from dflash.training.errors import NothingToResume, OtherTraining
from dflash.training.evaluation import TOTAL, tau_on
from dflash.training.run import Pace, Training, measured_tau, new_drafter
from dflash.training.settings import DrafterSettings, StepSettings, TextSettings, TrainSettings
from dflash.training.sizes import block_config
from dflash.training.texts import Library

PROMPTS = ["What is a rainbow?", "Count to ten.", "Name a colour.", "Who are you?", "Sing!", "Why?"]
SMALL = ["--layers", "1", "--drafts", "3", "--texts", "48", "--streams", "48", "--length", "110"]
SHORT = [*SMALL, "--held-out", "4", "--step-texts", "4", "--anchors", "4"]


def quiet(stage, share):
    """Say nothing."""


def training(target, folder, steps, texts=24, **drafter):
    """A training that takes seconds: greedy texts of short turns, one layer."""
    wanted = DrafterSettings(**{"family": "dspark", "layers": 1, "drafts": 3} | drafter)
    written = TextSettings(
        texts=texts, streams=texts, length=96, held_out=12, judged=40, greedy=1.0, manners=Manners(16, 60)
    )
    settings = TrainSettings(wanted, written, StepSettings(steps=steps, texts=12, anchors=12, rate=0.05))
    taps = block_config(target, wanted).taps
    library = Library(target.model, target.tokenizer, written, taps, [], settings.seed)
    identity = {"settings": settings.to_dict(), "texts": library.identity}
    return Training(target, settings, library, folder, Pace(measure=50, save=5), identity)


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), encoding="utf-8")
    return path


def test_a_drafter_learns_what_an_untrained_one_cannot(tiny, tmp_path):
    one = training(tiny, tmp_path, 100, texts=160)
    held_out = one.texts.held_out(quiet)
    untrained = measured_tau(new_drafter(tiny, one.settings), held_out, range(12), 40)
    drafter = one.run(False, quiet)
    trained = measured_tau(drafter, held_out, range(12), 40)
    assert untrained.tau < 1.4
    assert trained.tau > 1.6
    assert one.marks[-1].tally.tau == trained.tau


class Killed(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("family", ["dspark", "dflash"])
def test_a_resumed_training_ends_in_the_same_bits(tiny, tmp_path, family):
    whole = training(tiny, tmp_path / "whole", 12, family=family)
    whole.folder.mkdir()
    wanted = whole.run(False, quiet).state_dict()

    def die(stage, share):
        if stage.startswith("training") and share > 0.6:
            raise Killed

    broken = training(tiny, tmp_path / "broken", 12, family=family)
    broken.folder.mkdir()
    with pytest.raises(Killed):
        broken.run(False, die)
    found = training(tiny, tmp_path / "broken", 12, family=family).run(True, quiet).state_dict()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.fixture(scope="module")
def recorded(tiny_folder, tmp_path_factory):
    """A recording with features."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS * 3), encoding="utf-8")
    words = ["record", "--target", str(tiny_folder), "--prompts", str(folder / "prompts.txt"), "-q"]
    words += ["--features", "all", "--max-new-tokens", "20", "-o", str(folder / "run.parquet")]
    assert run(words) == 0
    return folder / "run.parquet"


@pytest.mark.parametrize("source", ["online", "draft files"])
@pytest.mark.parametrize("family", ["dspark", "dflash"])
def test_the_same_command_gives_the_same_bits(
    tiny_folder, recorded, tmp_path, prompt_file, monkeypatch, capsys, family, source
):
    """Whatever the process has drawn before; another seed gives others. The card holds all that was given."""
    given = ["--online", "--prompts", str(prompt_file)]
    given = given if source == "online" else ["--draft-files", str(recorded)]
    words = [
        "train",
        "--family",
        family,
        "--target",
        str(tiny_folder),
        *given,
        *SHORT,
        "--steps",
        "4",
        "--json",
    ]
    weights, cards = [], []
    for number, seed in enumerate(("5", "5", "6")):
        torch.manual_seed(number)
        np.random.seed(number)
        folder = tmp_path / str(number)
        capsys.readouterr()
        monkeypatch.setenv("DFLASH_TRAIN_SEED", seed)
        assert run([*words, "-o", str(folder)]) == 0
        weights.append((folder / "model.safetensors").read_bytes())
        cards.append(json.loads(capsys.readouterr().out))
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    fixed = ("settings", "inputs", "versions", "target", "tokenizer", "taps", "history", "tau")
    assert [cards[0][name] for name in fixed] == [cards[1][name] for name in fixed]
    # a default from the environment is in the card, though not in the command
    assert [card["settings"]["seed"] for card in cards] == [5, 5, 6]
    if source == "online":
        assert cards[0]["inputs"]["prompts"] == {
            "name": "prompts.txt",
            "sha256": hashlib.sha256(prompt_file.read_bytes()).hexdigest(),
        }
    else:
        assert cards[0]["inputs"] == {"texts": [open_draft_file(recorded).content_digest]}


def test_only_the_same_training_is_resumed(tiny, tmp_path):
    with pytest.raises(NothingToResume):
        training(tiny, tmp_path, 2).run(True, quiet)
    training(tiny, tmp_path, 2).run(False, quiet)
    with pytest.raises(
        OtherTraining, match=r"--family dflash where it has dspark; --steps 3 where it has 2\."
    ):
        training(tiny, tmp_path, 3, family="dflash").run(True, quiet)


def leaves(value, path=()):
    """Every value that is no mapping, by its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def test_every_setting_is_named_by_its_option_and_with_both_values(tmp_path):
    before = {"settings": TrainSettings().to_dict(), "target": "a" * 64, "texts": "b" * 64}
    save_checkpoint(tmp_path, {}, before)
    options = {flag for option in train.params for flag in option.opts}
    # no option sets them
    fixed = {"--adam-share", "--warmup", "--user-temperature"}
    for path, value in leaves(before):
        now = json.loads(json.dumps(before))
        held = functools.reduce(dict.__getitem__, path[:-1], now)
        held[path[-1]] = "now"
        with pytest.raises(OtherTraining) as error:
            load_checkpoint(tmp_path, now, torch.device("cpu"))
        said = str(error.value)
        assert len(path) == 1 or ".".join(path[-2:]) not in said
        named = {word.strip(",.;") for word in said.split() if word.startswith("--")}
        assert named <= options | fixed
        if path[0] == "settings":
            (name,) = named
            assert f"{name} now where it has {'not given' if value in (None, ()) else value}. " in said


@pytest.mark.parametrize("family", ["dspark", "dflash"])
def test_an_exported_drafter_walks_as_it_runs(tiny, tiny_folder, tmp_path, prompt_file, capsys, root, family):
    folder, target = tmp_path / family, str(tiny_folder)
    words = ["train", "--family", family, "--target", target, "--online", "-o", str(folder), *SHORT]
    words += ["--steps", "30", "--rate", "0.05", "--evaluate", str(prompt_file), "--max-new-tokens", "30"]
    assert run([*words, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas" / "train_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(card)
    assert card["tau"][TOTAL]["answers"] == len(PROMPTS)

    exported = read_block(str(folder), tiny, family).model
    walked = tau_on(exported, tiny, conversations(tiny, prompt_file), 30)[TOTAL]
    recorded = tmp_path / "run.parquet"
    shape = ["--length", "3", "--branches", "1", "--max-new-tokens", "30"]
    prompts = ["--prompts", str(prompt_file), "--drafter", f"{family}:{folder}"]
    assert run(["record", "--target", target, *prompts, *shape, "-o", str(recorded), "--json"]) == 0
    live = json.loads(capsys.readouterr().out)
    assert live["rounds"] == walked["rounds"]
    assert live["tau"] == pytest.approx(walked["tau"], abs=1e-9)
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# A {family} drafter for tiny\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--online or --draft-files"),
        (["--online", "--draft-files", "."], "--online or --draft-files"),
        (["--online", "--resume", "--overwrite"], "--resume or --overwrite"),
        (["--online", "--taps", "2,x"], "--taps as numbers"),
        (["--online", "--taps", "9"], "taps from 1 to 1"),
        (["--online", "--layers", "3"], "--init random"),
        (["--online", "--length", "4096"], "the target's window"),
        (["--online", "--mask-token", "99999"], "mask token below"),
    ],
)
def test_what_cannot_be_trained_is_refused(tiny_folder, tmp_path, capsys, words, said):
    place = ["-o", str(tmp_path / "new"), "--target", str(tiny_folder), "--texts", "4", "--streams", "4"]
    assert run(["train", "--family", "dflash", *place, *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_folder_with_files_is_not_written_over(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for words in ([], ["--overwrite"]):
        assert run(["train", "--family", "dflash", "--online", "-o", str(tmp_path), *words]) == 2
        assert "expected no folder, or an empty one" in " ".join(capsys.readouterr().err.split())
