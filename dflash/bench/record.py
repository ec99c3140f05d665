"""What recording costs: prompts decoded without it, with it, and with it in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from dflash.drafters.base import Anchor, Proposal
from dflash.engine.judge import Judge, Row
from dflash.engine.lane import Lane
from dflash.engine.prompts.prompt import Prompt
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.target.load import Target
from dflash.target.sampling import Sampling, argmax
from dflash.target.statistics import race


class DecodingJudge(Judge):
    """Keeps only what `match` decides from: the choices."""

    def row(
        self,
        anchor: Anchor,
        proposal: Proposal,
        logits: torch.Tensor,
        sampling: Sampling,
    ) -> Row:
        """Tree and choices of one round."""
        noise = self._noise(anchor, proposal, logits, sampling)
        raw = logits.float()
        choice = argmax(raw) if noise is None else race(raw / sampling.temperature, noise)[0]
        return {
            "anchor_position": anchor.position,
            "node_token": np.array(proposal.tokens, dtype=np.int32),
            "node_parent": np.array(proposal.parents, dtype=np.int16),
            "slot_choice": choice.to(torch.int32).cpu().numpy(),
        }


class NoSink:
    """Takes what the loop produces and keeps nothing."""

    def opened(self, lane: Lane) -> None:
        """Nothing to open."""

    def row(self, lane: Lane, row: Row) -> None:
        """Drop a round."""

    def closed(self, lane: Lane) -> None:
        """Nothing to close."""

    def ended(self, order: int) -> None:
        """Nothing to write."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of one prompt with recording on and off, and the tokens that all emitted.

    Attributes:
        on: recorded in the decoding process.
        apart: recorded in a process of its own; its start is not counted.
    """

    on: float
    apart: float
    off: float
    tokens: int


@dataclass(frozen=True, slots=True)
class RecordCost:
    """All pairs; overhead is the median of on/off - 1 over pairs."""

    pairs: tuple[Pair, ...]

    @property
    def overhead(self) -> float:
        """Median share of decoding time that recording adds in the same process."""
        return median(pair.on / pair.off - 1.0 for pair in self.pairs)

    @property
    def overhead_apart(self) -> float:
        """The same with a process of its own."""
        return median(pair.apart / pair.off - 1.0 for pair in self.pairs)

    @property
    def tokens(self) -> int:
        """Tokens decoded with recording on."""
        return sum(pair.tokens for pair in self.pairs)


def measure(target: Target, settings: RecordSettings, prompts: Sequence[Prompt], pairs: int) -> RecordCost:
    """Decode `pairs` prompts three times each, the order rotating; all must emit the same tokens.

    Sampling must not cut tokens and the policy must be `match`: that is all the recording-off side can do.
    """
    found: list[Pair] = []
    with TemporaryDirectory() as folder:
        sides = {
            "on": Session(target, replace(settings, recorder="inline")),
            "apart": Session(target, replace(settings, recorder="process")),
            "off": Session(target, settings),
        }
        off = sides["off"]
        off.engine.judge = DecodingJudge(off.noise, settings.store_topk)
        off.engine.features, off.trunk.taps = None, off.drafter.taps
        names = list(sides)
        for number in range(pairs):
            prompt = replace(prompts[number % len(prompts)], id=str(number))
            seconds: dict[str, float] = {}
            outputs: dict[str, list[int]] = {}
            for turn in range(len(names)):
                name = names[(number + turn) % len(names)]
                session = sides[name]
                session.settings = replace(session.settings, output=Path(folder) / f"{name}{number}.parquet")
                seconds[name], outputs[name] = _run(session, prompt, name != "off")
            if outputs["on"] != outputs["off"] or outputs["apart"] != outputs["off"]:
                raise RuntimeError("recording changed the tokens that were decoded")
            found.append(Pair(**seconds, tokens=len(outputs["on"])))
    return RecordCost(tuple(found))


def _run(session: Session, prompt: Prompt, recording: bool) -> tuple[float, list[int]]:
    lanes: list[Lane] = []
    conversations = list(session.conversations([prompt], check=True))
    # every prompt of the benchmark is the first of its kind, on all sides
    session.forget()
    started = perf_counter()
    if recording:
        seconds = session.record(conversations, on_request=lanes.append).seconds
    else:
        lanes = list(session.engine.run(conversations, NoSink()))
        seconds = perf_counter() - started
    return seconds, [token for lane in lanes for token in lane.output]
