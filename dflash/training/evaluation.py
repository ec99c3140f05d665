"""Greedy tau on given prompts: the target answers them, the drafter walks over the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dflash.drafters.block.model import BlockDrafter
from dflash.engine.prompts.chat import ChatConversation
from dflash.target.load import Target
from dflash.training.card import tally_facts
from dflash.training.run import measured_tau
from dflash.training.script import Headers
from dflash.training.texts import answered
from dflash.training.walk import Tally

TOTAL = "all"


def tau_on(
    drafter: BlockDrafter, target: Target, conversations: Sequence[ChatConversation], longest: int
) -> dict[str, dict[str, Any]]:
    """Facts of the walk by category of the prompts, and of all together; first turns only.

    Args:
        drafter: To be measured.
        target: Answers greedily.
        conversations: Prompts, encoded.
        longest: Tokens of an answer.
    """
    config = drafter.config
    prompts = [first_prompt(conversation) for conversation in conversations]
    corpus = answered(
        target.model, prompts, longest, config.drafts, config.taps, Headers.of(target.tokenizer)
    )
    groups: dict[str, list[int]] = {}
    for number, conversation in enumerate(conversations):
        groups.setdefault(conversation.prompt.category or "prompts", []).append(number)
    total = Tally(0, np.zeros(config.drafts, dtype=np.int64))
    found: dict[str, dict[str, Any]] = {}
    for name, numbers in groups.items():
        tally = measured_tau(drafter, corpus, numbers, longest)
        found[name] = {"answers": len(numbers)} | tally_facts(tally)
        total += tally
    return {TOTAL: {"answers": len(prompts)} | tally_facts(total)} | found


def first_prompt(conversation: ChatConversation) -> list[int]:
    """Tokens of a conversation's first request."""
    request = conversation.next(None)
    if request is None:
        raise ValueError("a conversation has at least one turn")
    return list(request.prompt_tokens)
