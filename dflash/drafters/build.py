"""From `--drafter NAME` to a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from dflash.drafters.base import Drafter, NoDrafter, ProposalKind
from dflash.drafters.lm import LanguageModelDrafter
from dflash.drafters.ngram import NgramDrafter
from dflash.errors import DflashError
from dflash.policy.context import DraftSampling
from dflash.target.load import Target
from dflash.target.model import TrunkModel
from dflash.target.noise import TargetNoise
from dflash.target.quantise import quantise

DRAFTERS = {
    "ngram": "prompt lookup: copies what followed the last tokens earlier in the text; no model",
    "self": "an int8 copy of the target: a drafter that almost always agrees, for testing p/q",
    "none": "no drafts: plain decoding",
}


class UnknownDrafter(DflashError):
    """No drafter family has this name."""

    def __init__(self, name: str) -> None:
        close = get_close_matches(name, DRAFTERS, n=1, cutoff=0.4)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(DRAFTERS)}."
        super().__init__(f"No drafter is called {name!r}. {hint}")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """What a run fixes for its drafter."""

    kind: ProposalKind
    sampling: DraftSampling
    follow_target: bool
    store_topk: int
    lanes: int
    capacity: int


def check_drafter(name: str) -> None:
    """Refuse an unknown name before any model is loaded.

    Raises:
        UnknownDrafter: offering the nearest name.
    """
    if name not in DRAFTERS:
        raise UnknownDrafter(name)


def build_drafter(name: str, target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    """The drafter of that name for a loaded target.

    Raises:
        UnknownDrafter: offering the nearest name.
    """
    check_drafter(name)
    if name == "none":
        return NoDrafter()
    if name == "ngram":
        return NgramDrafter()
    return _self_drafter(target, noise, settings)


def _self_drafter(target: Target, noise: TargetNoise, settings: DraftSettings) -> Drafter:
    copied = quantise(target.model, "int8")
    identity = {
        "revision": target.identity["revision"],
        "weights_digest": copied.weights_digest,
        "config_digest": target.identity["config_digest"],
        "dtype": target.identity["dtype"],
        "quantisation": copied.parameters,
        "parameter_count": target.identity["parameter_count"],
    }
    model = TrunkModel(copied.model, settings.lanes, settings.capacity)
    return LanguageModelDrafter(
        "self",
        model,
        settings.kind,
        settings.sampling,
        settings.follow_target,
        noise,
        settings.store_topk,
        identity,
    )
