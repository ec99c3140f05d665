"""What every device round of an engine has in common, and why an engine's rounds go through the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.drafters.base import Drafter, DraftShape, NoDrafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.engine.features import Features
from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.feature_codes import Encoding
from dflash.kernels.round_draft import MAX_RANK, DraftLaw
from dflash.kernels.round_slots import MAX_TOP
from dflash.policy.context import Proposal as ProposalKind
from dflash.policy.context import RuleContext
from dflash.policy.registry import Policy
from dflash.target.model import TrunkModel
from dflash.target.native import NativeTrunk
from dflash.target.sampling import Sampling

RULES = ("match", "greedy", "speculative")
# long chains keep a slow host ahead of the device; a lane that ends waits for its chain and the next
SPECULATIVE_CHAIN, PLAIN_CHAIN = 2, 4


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What the rounds of an engine are; `shape` is what every round drafts, of length 0 without a drafter.

    Attributes:
        store_topk: logits a slot that are kept, the target's and the drafter's.
        by_argmax: whether the rule emits the argmax instead of the choice.
        projection: what makes fingerprints of hidden states `[taps x hidden, 16]`; None for no features.
        features: how the hidden states themselves are kept; None if they are not.
        chain: rounds that the host queues, and reads, at once.
        eager: whether rounds are computed launch by launch where a graph could hold them.
    """

    shape: DraftShape
    store_topk: int
    by_argmax: bool = False
    projection: Tensor | None = None
    features: Encoding | None = None
    chain: int = 1
    eager: bool = False

    @property
    def top(self) -> int:
        """Target logits a slot that are recorded: a gap needs two."""
        return max(self.store_topk, 2)


def draft_law(drafter: BlockFamily) -> DraftLaw:
    """How q is made of a drafter's logits."""
    sampling = drafter.drawing.sampling
    return DraftLaw(sampling.top_k, sampling.top_p)


def draft_top(drafter: BlockFamily, store_topk: int) -> int:
    """Draft logits a slot that are recorded: those that are stored, and all of q."""
    return max(store_topk, drafter.drawing.sampling.top_k, 2)


def round_plan(
    policy: Policy, drafter: Drafter, shape: DraftShape, store_topk: int, features: Features | None
) -> RoundPlan:
    """The plan of an engine's rounds."""
    drafts = shape if isinstance(drafter, BlockFamily) and shape.length else DraftShape(0)
    if isinstance(drafter, BlockFamily) and drafts.length:
        fan, top_k = drafter.drawing.fan, drafter.drawing.sampling.top_k
        width = min(drafts.branches, fan.branches if fan else drafts.branches, top_k or drafts.branches)
        drafts = DraftShape(drafts.length, width)
    projection = None if features is None else features.fingerprint.matrix
    whole = None if features is None else features.whole
    by_argmax = policy.rule.name == "greedy"
    return RoundPlan(drafts, store_topk, by_argmax, projection, whole, chain_of(drafts.length))


def chain_of(length: int) -> int:
    """Rounds of drafts of a length that are queued at once."""
    return SPECULATIVE_CHAIN if length else PLAIN_CHAIN


def reasons_for_the_host(
    trunk: TrunkModel,
    drafter: Drafter,
    policy: Policy,
    context: RuleContext,
    sampling: Sampling,
    shape: DraftShape,
    store_topk: int,
) -> list[str]:
    """Everything about an engine that rounds on the device cannot do yet; empty if they can do it all."""
    return [
        *_of_the_target(trunk, sampling, store_topk),
        *_of_the_policy(policy, context),
        *_of_the_drafter(drafter, shape, store_topk),
        *_of_narrower_trees(drafter, policy, shape, store_topk),
    ]


def _of_the_target(trunk: TrunkModel, sampling: Sampling, store_topk: int) -> Iterator[str]:
    if not isinstance(trunk, NativeTrunk):
        yield "the target does not run on the native kernels"
    if sampling.cuts:
        yield "top-k or top-p cuts the target's law"
    if store_topk > MAX_TOP:
        yield f"more than {MAX_TOP} logits a slot are stored"


def _of_the_policy(policy: Policy, context: RuleContext) -> Iterator[str]:
    rule, control = policy.rule, policy.control
    if rule.name not in RULES or rule.draws_residuals(context):
        yield f"the rule {rule.name} does more than compare drafts with choices"
    if control.columns:
        yield f"the control {control.name} cuts trees after they are drafted"
    if control.moves_threshold:
        yield f"the control {control.name} moves the rule's threshold"
    if not policy.shape.after_drafting.whole:
        yield "the policy cuts trees after they are drafted"


def _of_the_drafter(drafter: Drafter, shape: DraftShape, store_topk: int) -> Iterator[str]:
    if isinstance(drafter, NoDrafter) or shape.length == 0:
        return
    if not isinstance(drafter, BlockFamily) or drafter.native is None:
        yield f"the drafter {drafter.name} does not run on the native kernels"
        return
    if shape.length * shape.branches >= MAX_NODES:
        yield f"a tree has more than {MAX_NODES - 1} nodes"
    fan = drafter.drawing.fan
    if fan is not None and len(fan.children) > 1:
        yield "trees fork below the anchor"
    if drafter.kind not in (ProposalKind.DETERMINISTIC, ProposalKind.SHARED):
        yield f"proposals are {drafter.kind}"
    elif drafter.kind is ProposalKind.SHARED and not drafter.drawing.sampling.top_k:
        yield "drafts are drawn from the whole vocabulary: ask for --draft-top-k"
    if draft_top(drafter, store_topk) > MAX_TOP:
        yield f"more than {MAX_TOP} draft logits a slot are stored"
    yield from _of_the_heads(drafter)


def _of_narrower_trees(drafter: Drafter, policy: Policy, shape: DraftShape, store_topk: int) -> Iterator[str]:
    """A node's lead over the first sibling that is cut is only known if all siblings lead over another."""
    if "branches" not in policy.control.varies or shape.branches == 1 or not isinstance(drafter, BlockFamily):
        return
    sampling = drafter.drawing.sampling
    candidates = sampling.top_k or draft_top(drafter, store_topk)
    if shape.branches >= candidates or sampling.top_p < 1.0:
        yield f"the control {policy.control.name} changes the branches, which may be all that can be drafted"


def _of_the_heads(drafter: BlockFamily) -> Iterator[str]:
    config = drafter.config
    if config.markov is not None and (config.markov.kind != "vanilla" or config.markov.rank > MAX_RANK):
        yield f"its Markov head is {config.markov.kind} of rank {config.markov.rank}"
    if config.selector is not None:
        yield "a selector chooses among its candidates"
    if config.draft_vocabulary is not None and bool((drafter.model.draft_ids.diff() <= 0).any()):
        yield "its draft vocabulary is not in ascending order"


def ids_of(drafter: BlockFamily) -> Tensor | None:
    """The target's ids of a draft vocabulary, int32; None where they are the same."""
    if drafter.config.draft_vocabulary is None:
        return None
    return drafter.model.draft_ids.to(torch.int32)
