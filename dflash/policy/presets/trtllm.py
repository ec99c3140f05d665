"""The preset `trtllm`: TensorRT-LLM's default, the longest prefix of sampled tokens that was drafted."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.match import equal_to
from dflash.policy.presets.engine import Preset
from dflash.policy.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Trtllm(Preset):
    """Accept while draft = sampled token, then emit the sampled token."""

    name = "trtllm"
    summary = "sample the target's tokens, accept the longest drafted prefix of them, then emit the next one"
    lossless_note = "every emitted token is the target's choice, whatever was drafted"
    exactness_note = "always: no coin decides"
    columns = ("node_token", "slot_choice")
    temperature_zero = "greedy: accepts and emits the argmax"
    processing = "the target's own sampler draws at every slot: the recorded choice"
    source = (
        "TensorRT-LLM, technical blog 2; on trees the longest path. Its relaxed acceptance is the rule "
        "`relaxed`: use_relaxed_acceptance_for_thinking, relaxed_topk as k, relaxed_delta as delta"
    )

    def decide(self, rounds: Rounds, context: RuleContext) -> Decision:
        """Judge every round; see `Rule.decide`."""
        return equal_to(rounds, rounds["slot_choice"])

    def tosses(self, context: RuleContext) -> bool:
        """Never; see `Preset.tosses`."""
        return False
