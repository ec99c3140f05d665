"""What a training fixes beside its target and its data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dflash.errors import UsageError
from dflash.training.dialogue import Manners

Family = Literal["dflash", "dspark"]
Init = Literal["target", "random"]


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """The drafter to be trained; its other sizes are the target's.

    Attributes:
        drafts: Tokens that a block drafts.
        taps: Hugging Face `hidden_states` indices; empty for the family's usual five, or a draft file's own.
        markov_rank: Of the head that reads the token before (`dspark`).
        mask_token: Id of the token that stands for "to be drafted"; None finds one that no text has.
    """

    family: Family = "dflash"
    layers: int = 3
    drafts: int = 7
    taps: tuple[int, ...] = ()
    markov_rank: int = 32
    mask_token: int | None = None
    init: Init = "target"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What the target writes to be learned from.

    Attributes:
        rounds: How often all texts are written anew, evenly over the training.
        texts: Kept at once, with their hidden states.
        streams: Written at once.
        length: Tokens of a text.
        greedy: Share of texts whose answers are greedy; the others have temperatures up to 1.
        prompted: Share of texts that start with a given prompt, where prompts were given.
        held_out: Greedy texts that are never learned from, for tau.
        judged: Longest part of an answer that tau is measured on.
    """

    rounds: int = 1
    texts: int = 4096
    streams: int = 1024
    length: int = 512
    greedy: float = 0.5
    prompted: float = 0.3
    held_out: int = 64
    judged: int = 128
    manners: Manners = Manners()


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How it is learned: `texts` x `anchors` blocks a step.

    Attributes:
        rate: Peak learning rate of Muon (matrices); AdamW's, for all else, is `adam_share` of it.
        decay: Slot k of a block weighs exp(-k / decay).
        warmup: Share of the steps over which the rate rises, before it falls as a cosine to zero.
    """

    steps: int = 4000
    texts: int = 24
    anchors: int = 64
    rate: float = 0.01
    adam_share: float = 0.1
    decay: float = 4.0
    warmup: float = 0.02


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """All that fixes a training's result, but for where and when it is stored."""

    drafter: DrafterSettings = DrafterSettings()
    text: TextSettings = TextSettings()
    step: StepSettings = StepSettings()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text.streams > self.text.texts:
            raise UsageError(
                f"Expected at most {self.text.texts} streams, which are all texts, found {self.text.streams}."
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
