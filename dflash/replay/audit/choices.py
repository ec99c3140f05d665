"""Probe: the target's choices are the winners of their races."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dflash.replay.audit.evidence import Evidence
from dflash.replay.audit.exact import Compared, ExactProbe
from dflash.replay.audit.races import NO_KEY, has_noise, target_race


@dataclass(slots=True)
class Choices(ExactProbe):
    """Runs the target's race again among the stored top tokens and the choice."""

    name = "choices"
    question = "the choice is the winner of the target's race at its position"
    nothing = "nothing was sampled by the target"
    power = "every choice that a stored top token would have beaten"

    def untestable(self, evidence: Evidence) -> str | None:
        """Return why the race cannot be run; see `Probe.untestable`."""
        return NO_KEY if evidence.context.temperature and not has_noise(evidence) else None

    def compare(self, evidence: Evidence) -> Iterator[Compared]:
        """Yield the winner at every slot of a sampling target."""
        rounds = evidence.rounds
        if not evidence.context.temperature or not rounds["slot_topk_token"].shape[1]:
            return
        slots = np.arange(len(evidence.slot_round))
        choice = rounds["slot_choice"].astype(np.int64)
        known = (choice >= 0) & ~np.isnan(evidence.top_p).any(axis=1)
        slots, choice = slots[known], choice[known]
        tokens = np.column_stack([choice, rounds["slot_topk_token"][slots]]).astype(np.int64)
        logits = np.column_stack([rounds["slot_choice_logit"][slots], rounds["slot_topk_logit"][slots]])
        with np.errstate(divide="ignore"):
            log_p = np.log(evidence.probability(slots, logits))
        score = log_p - target_race(evidence, slots, tokens)
        best = score.argmax(axis=1)
        behind = score.max(axis=1) - score[:, 0]
        wrong = tokens[np.arange(len(slots)), best] != choice
        near = behind <= evidence.top_slack(slots)
        row, index = evidence.slot_round[slots], evidence.slot_index[slots]
        winner = tokens[np.arange(len(slots)), best]
        yield Compared("slot_choice", "slot", row, index, wrong, near, winner, choice)
