"""From `--drafter NAME[+NAME]` to a drafter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from dflash.drafters.base import Drafter, NoDrafter, ProposalKind
from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.checkpoint.read import read_block, read_drafts
from dflash.drafters.drawing import Drawing
from dflash.drafters.fan import Fan
from dflash.drafters.lm import LanguageModelDrafter
from dflash.drafters.ngram import NgramDrafter
from dflash.drafters.shipped import FAMILY, FOLDER, NAME
from dflash.drafters.stored import StoredDrafter, trunks
from dflash.drafters.suffix import SuffixDrafter, SuffixStore
from dflash.drafters.union import UnionDrafter
from dflash.draftfile.identity import STORED_DRAFTS, WARM, require_same
from dflash.draftfile.reader import open_draft_file
from dflash.errors import DflashError, UsageError
from dflash.policy.context import DraftSampling
from dflash.target.load import Target, load_target
from dflash.target.model import TrunkModel
from dflash.target.noise import TargetNoise
from dflash.target.quantise import Quantisation, quantise

DRAFTERS = {
    "default": "the drafter that comes with this package (dspark), for the default target",
    "ngram": "prompt lookup: copies what followed the last tokens earlier in the text; no model",
    "suffix": "the longest suffix seen before, continued by frequency; no model; --warm fills its store",
    "self": "an int8 copy of the target: a drafter that almost always agrees, for testing p/q",
    "model": "model:PLACE, any language model with the target's tokenizer",
    "dflash": "dflash:PLACE, a block drafter that reads the target (z-lab's DFlash 1 and 2)",
    "dspark": "dspark:PLACE, the same with heads that read the token before (DeepSeek's DSpark)",
    "file": "file:RUN.parquet, the stored drafts of an earlier run",
    "none": "no drafts: plain decoding",
}
BLOCKS = ("dflash", "dspark")
WITH_PLACE = ("model", *BLOCKS, "file")
WITH_LAW = ("model", "self", *BLOCKS)
# the field's usual start for drafters of any length
LENGTH = 5


class UnknownDrafter(DflashError):
    """No drafter family has this name."""

    def __init__(self, name: str) -> None:
        close = get_close_matches(name, DRAFTERS, n=1, cutoff=0.4)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(DRAFTERS)}."
        super().__init__(f"No drafter is called {name!r}. {hint}")


class OtherTokenizer(DflashError):
    """A drafting model whose tokens are not the target's."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(
            f"Expected a drafter with the tokenizer of {target}, found another in {name!r}: its tokens would "
            "mean other text."
        )


class DraftTooLong(UsageError):
    """A block drafter was asked for more tokens than its block drafts."""

    def __init__(self, name: str, longest: int, asked: int) -> None:
        super().__init__(
            f"Expected --length at most {longest}, all that {name} drafts at once, found {asked}."
        )


class TooFewCandidates(UsageError):
    """More logits a slot were to be stored than the drafter has candidates."""

    def __init__(self, name: str, candidates: int, asked: int) -> None:
        super().__init__(
            f"Expected --store-topk at most {candidates}, all the candidates of {name}, found {asked}."
        )


class NothingToQuantise(UsageError):
    """Drafters without a model, or with drafts that are made already, were to be quantised."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Expected --draft-quant with a drafter that is a model ({', '.join((NAME, *WITH_LAW))}), found "
            f"{found}. Leave it out, or choose such a drafter."
        )


class Part(NamedTuple):
    """One drafter of a union: its family, and the place of its model or file."""

    family: str
    place: str | None = None


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """What a run fixes for its drafter; `length` is the largest draft's."""

    kind: ProposalKind
    sampling: DraftSampling
    follow_target: bool
    store_topk: int
    lanes: int
    capacity: int
    warm: tuple[Path, ...] = ()
    fan: Fan | None = None
    length: int = LENGTH
    quantisation: Quantisation = "none"


def parse_drafter(text: str) -> list[Part]:
    """`default`, `model:PLACE`, `ngram+suffix`, …; a `+` inside a place is no border.

    Raises:
        UnknownDrafter: offering the nearest name.
        UsageError: A place is missing or superfluous, or `none` stands in a union.
    """
    pieces = re.split(rf"\+(?=(?:{'|'.join(DRAFTERS)})(?:[:+]|$))", text)
    parts = []
    for piece in pieces:
        family, colon, place = piece.partition(":")
        if family not in DRAFTERS:
            raise UnknownDrafter(family)
        if (family in WITH_PLACE) != bool(place):
            expected = f"{family}:PLACE" if family in WITH_PLACE else family
            raise UsageError(f"Expected the drafter as {expected}, found {piece!r}.")
        parts.append(Part(FAMILY, str(FOLDER)) if family == NAME else Part(family, place or None))
    if len(set(parts)) < len(parts):
        raise UsageError(f"Expected different drafters in a union, found one twice in {text!r}.")
    if len(parts) > 1 and Part("none") in parts:
        raise UsageError(f"Expected drafters that draft, found 'none' in the union {text!r}.")
    return parts


def check_quantisation(parts: Sequence[Part], method: Quantisation) -> None:
    """Refuse to quantise what has no weights; beside a model, drafters without one are left as they are.

    Raises:
        NothingToQuantise: No drafter is a model, or one has its drafts from a file.
        UsageError: `self`, which is int8, is asked for in another precision.
    """
    if method == "none":
        return
    families = [part.family for part in parts]
    if "file" in families:
        raise NothingToQuantise("file, whose drafts are made already")
    if not set(families) & set(WITH_LAW):
        raise NothingToQuantise(f"{'+'.join(families)}, which has no weights")
    if "self" in families and method != "int8":
        raise UsageError(
            f"Expected --draft-quant int8 with the drafter self, which is an int8 copy, found {method}."
        )


def build_drafter(
    parts: Sequence[Part], target: Target, noise: TargetNoise, settings: DraftSettings
) -> Drafter:
    """The drafter for a loaded target.

    Raises:
        OtherTokenizer: A drafting model has another tokenizer.
        IdentityMismatch: Stored drafts or a warm store come from other models.
        CheckpointError: A checkpoint cannot be read, or does not fit the target.
        UsageError: `warm` is given, and nothing of it has a store.
        UnsupportedQuantisation: The device has no kernels for the drafter's quantisation.
    """
    if settings.warm and Part("suffix") not in parts:
        raise UsageError("Expected --warm with the drafter suffix, found none that keeps a store.")
    built = [_build(part, target, noise, settings) for part in parts]
    return built[0] if len(built) == 1 else UnionDrafter(built)


def _build(part: Part, target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    match part.family:
        case "ngram":
            return NgramDrafter()
        case "suffix":
            return SuffixDrafter(_warm_store(settings.warm, target))
        case "self":
            return _self_drafter(target, noise, settings)
        case "model":
            return _model_drafter(str(part.place), target, noise, settings)
        case "dflash" | "dspark":
            return _block_drafter(part, target, noise, settings)
        case "file":
            return _stored_drafter(Path(str(part.place)), target, settings)
        case _:
            return NoDrafter()


def _identity(target: Target, drafters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"target": target.identity, "drafters": drafters, "tokenizer": target.tokenizer_identity}


def _warm_store(files: Sequence[Path], target: Target) -> SuffixStore:
    sequences: list[list[int]] = []
    for path in files:
        file = open_draft_file(path)
        require_same(file.header.raw, _identity(target, []), WARM, path)
        sequences += trunks(file)
    return SuffixStore.of(sequences)


def _stored_drafter(path: Path, target: Target, settings: DraftSettings) -> Drafter:
    drafter = StoredDrafter(path, settings.store_topk)
    header = drafter.file.header.raw
    require_same(header, _identity(target, header["drafters"]), STORED_DRAFTS, path)
    return drafter


def _self_drafter(target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    copied = quantise(target.model, "int8")
    changed = {"quantisation": copied.parameters, "weights_digest": copied.weights_digest}
    return _language_model("self", copied.model, target.identity | changed, noise, settings)


def _model_drafter(place: str, target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    dtype = str(target.dtype).removeprefix("torch.")
    model = load_target(place, device=str(target.device), dtype=dtype, quantisation=settings.quantisation)
    if model.tokenizer_identity["digest"] != target.tokenizer_identity["digest"]:
        raise OtherTokenizer(place, target.name)
    return _language_model(f"model:{model.name}", model.model, model.identity, noise, settings)


def _language_model(
    name: str, model: Any, identity: dict[str, Any], noise: TargetNoise, settings: DraftSettings
) -> Drafter:
    facts = {key: value for key, value in identity.items() if key != "name"}
    trunk = TrunkModel(model, settings.lanes, settings.capacity)
    return LanguageModelDrafter(name, trunk, _drawing(noise, settings), facts)


def _block_drafter(part: Part, target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    place = str(part.place)
    name = shown_name(part)
    found = read_block(place, target, part.family, settings.quantisation)
    config = found.model.config
    if settings.length > config.drafts:
        raise DraftTooLong(name, config.drafts, settings.length)
    if config.candidates < settings.store_topk:
        raise TooFewCandidates(name, config.candidates, settings.store_topk)
    drawing = _drawing(noise, settings)
    if config.selector is not None:
        width = min(drawing.sampling.top_k or config.candidates, config.candidates)
        drawing = replace(drawing, sampling=replace(drawing.sampling, top_k=width))
    return BlockFamily(name, found.model, drawing, found.identity, settings.lanes, settings.capacity)


def shown_name(part: Part) -> str:
    """How a header calls a block drafter: the shipped one as `--drafter` does, a folder by its last name."""
    place = str(part.place)
    if Path(place) == FOLDER:
        return NAME
    return f"{part.family}:{Path(place).name if Path(place).is_dir() else place}"


def default_length(parts: Sequence[Part]) -> int:
    """The draft length where none is asked for: a whole block, or the field's usual 5.

    Raises:
        NoSuchModel, CheckpointUnreadable: A block drafter is not there.
    """
    blocks = [read_drafts(str(part.place)) for part in parts if part.family in BLOCKS]
    return min(blocks, default=LENGTH)


def _drawing(noise: TargetNoise, settings: DraftSettings) -> Drawing:
    return Drawing(
        settings.kind,
        settings.sampling,
        settings.follow_target,
        noise,
        settings.store_topk,
        settings.fan,
    )
