"""What `dflash train` does with its options: load, find texts, train, export, say how good it is."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from dflash import __version__
from dflash.cli.outcome import Exit
from dflash.cli.output import emit, stages, talk, warn
from dflash.cli.record_options import load
from dflash.drafters.block.model import BlockDrafter
from dflash.drafters.checkpoint.write import write_block
from dflash.engine.header import git_facts
from dflash.engine.prompts.chat import ChatConversation, Defaults, Ordinals
from dflash.engine.prompts.files import check_prompts, read_prompt_file, with_ids, with_remarks
from dflash.errors import UsageError
from dflash.target.load import Target
from dflash.target.sampling import Sampling
from dflash.training.card import CARD, tally_facts, write_card
from dflash.training.checkpoint import FILE
from dflash.training.dialogue import Manners
from dflash.training.draft_files import RecordedTexts
from dflash.training.errors import NoRoomInWindow, OutputTaken
from dflash.training.evaluation import first_prompt, tau_on
from dflash.training.run import Pace, Texts, Training
from dflash.training.settings import DrafterSettings, StepSettings, TextSettings, TrainSettings
from dflash.training.sizes import block_config
from dflash.training.texts import Library

_OWN_FILES = {FILE, CARD, "README.md", "config.json", "model.safetensors"}


def run(as_json: bool, options: Mapping[str, Any]) -> int:
    """Train; returns the exit code."""
    if options["online"] == bool(options["draft_files"]):
        raise UsageError("Expected --online or --draft-files, one of them.")
    folder: Path = options["output"]
    _refuse_folder(folder, options["resume"], options["overwrite"])
    settings = train_settings(options)
    target = load({**options, "target_quant": "none"})
    if settings.text.length > target.window:
        raise NoRoomInWindow(settings.text.length, target.window)
    prompts = conversations(target, options["prompts"])
    judged = conversations(target, options["evaluate"])
    texts, settings = _texts(target, settings, prompts, options["draft_files"])
    identity = {
        "settings": settings.to_dict(),
        "target": target.identity["weights_digest"],
        "texts": texts.identity,
    }
    pace = Pace(options["measure_every"], options["save_every"])
    training = Training(target, settings, texts, folder, pace, identity)
    with stages() as tell:
        drafter = training.run(options["resume"], tell)
    export(drafter, folder, target)
    card = _card(training, texts, drafter) | {"inputs": inputs(options, texts)}
    if judged:
        card["tau"] |= tau_on(drafter, target, judged, settings.text.judged)
    write_card(folder, card)
    emit({"schema": "dflash.train/1", "folder": str(folder)} | card, as_json, lambda console: None)
    if not as_json:
        _say(folder, card)
    return Exit.DONE


def train_settings(options: Mapping[str, Any]) -> TrainSettings:
    """What the options fix of a training's result."""
    taps = options["taps"]
    if taps is not None and not all(part.strip().isdecimal() for part in taps.split(",")):
        raise UsageError(f"Expected --taps as numbers like 2,9,16, found {taps!r}.")
    return TrainSettings(
        DrafterSettings(
            family=options["family"],
            layers=options["layers"],
            drafts=options["drafts"],
            taps=tuple(map(int, taps.split(","))) if taps else (),
            markov_rank=options["markov_rank"] if options["family"] == "dspark" else 0,
            mask_token=options["mask_token"],
            init=options["init"],
        ),
        TextSettings(
            rounds=options["rounds"],
            texts=options["texts"],
            streams=min(options["streams"], options["texts"]),
            length=options["length"],
            greedy=options["greedy"],
            prompted=options["prompted"],
            held_out=options["held_out"],
            judged=options["max_new_tokens"],
            manners=Manners(options["longest_user"], options["longest_answer"]),
        ),
        StepSettings(
            steps=options["steps"],
            texts=options["step_texts"],
            anchors=options["anchors"],
            rate=options["rate"],
            decay=options["decay"],
        ),
        seed=options["seed"],
    )


def conversations(target: Target, path: Path | None) -> list[ChatConversation]:
    """The prompts of a file, encoded; none without a file."""
    if path is None:
        return []
    entries = with_remarks(with_ids(read_prompt_file(path)), warn)
    checked = check_prompts(entries, name=str(path))
    defaults = Defaults(Sampling(0.0, 0, 1.0), 0, 1)
    ordinals = Ordinals()
    return [
        ChatConversation(order, prompt, target, defaults, ordinals, lambda error: None)
        for order, prompt in enumerate(checked.prompts)
    ]


def inputs(options: Mapping[str, Any], texts: Texts) -> dict[str, Any]:
    """What a training was given beside its settings, so that it can be given the same again."""
    found: dict[str, Any] = {"texts": texts.identity}
    for name in ("prompts", "evaluate"):
        path = options[name]
        if path is not None:
            with path.open("rb") as file:
                found[name] = {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    return found


def export(drafter: BlockDrafter, folder: Path, target: Target) -> None:
    """Write the drafter in bfloat16, in the public layout of its family."""
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    stored = BlockDrafter(drafter.config).to(torch.bfloat16)
    stored.load_state_dict(drafter.state_dict())
    write_block(stored, folder, layers)


def _texts(
    target: Target, settings: TrainSettings, prompts: Sequence[ChatConversation], files: Sequence[Path]
) -> tuple[Texts, TrainSettings]:
    if files:
        recorded = RecordedTexts(files, target, settings.text)
        return recorded, recorded.with_taps(settings)
    taps = block_config(target, settings.drafter).taps
    given = [first_prompt(conversation) for conversation in prompts]
    return Library(target.model, target.tokenizer, settings.text, taps, given, settings.seed), settings


def _refuse_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise UsageError("Expected --resume or --overwrite, found both.")
    taken = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if taken and not resume and not (overwrite and taken <= _OWN_FILES):
        raise OutputTaken(folder)


def _card(training: Training, texts: Texts, drafter: BlockDrafter) -> dict[str, Any]:
    settings, target = training.settings, training.target
    device = target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    last = training.marks[-1].tally
    return {
        "family": drafter.config.family,
        "target": {key: target.identity[key] for key in ("name", "weights_digest", "dtype", "quantisation")},
        "tokenizer": target.tokenizer_identity["digest"],
        "parameters": sum(weight.numel() for weight in drafter.parameters()),
        "drafts": drafter.config.drafts,
        "taps": list(drafter.config.taps),
        "data": texts.description,
        "settings": settings.to_dict(),
        "steps": settings.step.steps,
        "seed": settings.seed,
        "device": name,
        "versions": {
            "toolkit": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "git": git_facts(),
        "seconds": dict(training.clock.seconds),
        "command": shlex.join(["dflash", *sys.argv[1:]]),
        "history": [
            {"step": mark.step, "divergence": mark.divergence, "tau": mark.tally.tau}
            for mark in training.marks
        ],
        "tau": {"held-out texts": {"answers": settings.text.held_out} | tally_facts(last)},
    }


def _say(folder: Path, card: Mapping[str, Any]) -> None:
    for name, facts in card["tau"].items():
        tau = "no rounds" if facts["tau"] is None else f"tau {facts['tau']:.3f}"
        talk(f"{name}: {tau} (accepted + 1 a live round, {facts['rounds']} rounds)")
    place = shlex.quote(str(folder))
    talk(f"{card['parameters']:,} parameters in {place}")
    talk(f'use it: dflash record --drafter {card["family"]}:{place} "..."')
