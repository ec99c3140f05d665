"""What `dflash record` fixes beside the target and the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash.drafters.base import DraftShape, ProposalKind
from dflash.drafters.build import WITH_LAW, Part, check_quantisation, parse_drafter
from dflash.drafters.fan import Fan
from dflash.draftfile.journal import SYNC_SECONDS
from dflash.engine.features import FeatureMode
from dflash.engine.prompts.chat import Defaults
from dflash.engine.shard import Shard
from dflash.errors import UsageError
from dflash.kernels.attention_plan import Mode
from dflash.kernels.feature_codes import Encoding
from dflash.policy.context import DraftSampling, RuleContext
from dflash.policy.control.controller import frame_of
from dflash.policy.registry import Policy
from dflash.policy.shape import Shape
from dflash.policy.step_time import StepTime
from dflash.target.native_support import DraftImpl, TargetImpl
from dflash.target.quantise import Quantisation

RecorderPlace = Literal["auto", "inline", "process"]
Overlap = Literal["none", "groups", "auto"]


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """All that `dflash record` fixes beside the target and the prompts."""

    output: Path
    drafter: str
    policy: Policy
    defaults: Defaults
    length: int
    branches: int
    proposal: ProposalKind | None = None
    draft_temperature: float | None = None
    draft_top_k: int = 8
    draft_top_p: float = 1.0
    store_topk: int = 16
    features: FeatureMode = FeatureMode.FINGERPRINT
    # of features that are kept whole
    feature_dtype: Encoding = "bf16"
    warm: tuple[Path, ...] = ()
    dense: bool = False
    lanes: int = 1
    keep_text: bool = True
    keep_host: bool = True
    overwrite: bool = False
    sync_seconds: float = SYNC_SECONDS
    resume: bool = False
    fan: Fan | None = None
    step_time: StepTime | None = None
    draft_quant: Quantisation = "none"
    target_impl: TargetImpl = "generic"
    draft_impl: DraftImpl = "generic"
    numerics: Mode = "fast"
    rounds: Literal["auto", "host", "device"] = "auto"
    # rounds that are queued on the device at once
    chain: int | None = None
    # whether one half of the lanes drafts while the other is verified
    overlap: Overlap = "none"
    shard: Shard | None = None
    metrics: Path | None = None
    recorder: RecorderPlace = "auto"
    # before the first prompt; on a GPU if it is not said
    warm_up: bool | None = None

    def __post_init__(self) -> None:
        check_quantisation(self.parts, self.draft_quant)
        self._check_fan()
        if self.numerics != "fast" and self.target_impl in ("captured", "generic"):
            raise UsageError("Expected --target-impl native with --numerics replay-exact.")
        if self.overwrite and self.resume:
            raise UsageError("Expected --overwrite or --resume, found both.")
        shape = self.policy.shape
        if not self.policy.rule.runs_live():
            raise UsageError(f"The policy {self.policy} is for replay; record under another one.")
        for name, asked, bound in (
            ("length", shape.length, self.length),
            ("branches", shape.branches, self.branches * len(self.parts)),
        ):
            if asked is not None and asked > bound:
                raise UsageError(
                    f"The policy asks for {name} {asked}, expected at most {bound}; raise --{name}."
                )

        self._check_trees()
        self._check_control()
        self._check_overlap()

    @property
    def judges_trees(self) -> bool:
        """Whether the rule judges trees of these drafts, beside chains."""
        context = RuleContext(self.defaults.sampling.temperature, self.kind)
        return self.policy.rule.judges_trees(context)

    def _check_trees(self) -> None:
        """Refuse branches that the rule cannot judge, before a model is loaded."""
        drafts = self.drafter != "none" and self.length > 0
        if drafts and self.live_shape.branches > 1 and not self.judges_trees:
            union = f" and one drafter, found {self.drafter}" if len(self.parts) > 1 else ""
            rule = self.policy.rule.name
            raise UsageError(
                f"The rule {rule} judges chains of such drafts, not trees: expected --branches 1{union}."
            )

    def _check_control(self) -> None:
        """Refuse a control that lacks what it needs, before a model is loaded."""
        control, largest = self.policy.control, Shape(self.length, self.branches)
        if self.shard is not None and control.streams:
            raise UsageError(
                f"The control {control.name} carries what it learns from request to request, which shards "
                "tear apart; use control.scope=request."
            )
        control.scheduler(frame_of(self.policy.rule, self.policy.shape, largest, self.step_time), 1)
        if self.resume and control.couples:
            raise UsageError(
                f"The control {control.name} ties requests together, and those that a resumed run keeps are "
                "over; record again, or use a control of scope request that does not look at the batch."
            )

    def _check_overlap(self) -> None:
        """Refuse groups of lanes where there is nothing to overlap."""
        if self.overlap != "groups":
            return
        if self.lanes < 2:
            raise UsageError(f"Expected --lanes 2 or more with --overlap groups, found {self.lanes}.")
        if self.live_shape.length == 0:
            raise UsageError("Expected drafts with --overlap groups: plain rounds have nothing to overlap.")
        if self.policy.control.adaptive:
            raise UsageError(f"--overlap groups cannot be: {control_takes_all(self.policy)}.")
        if self.rounds == "host":
            raise UsageError("Expected rounds on the device with --overlap groups, found --rounds host.")

    def _check_fan(self) -> None:
        if self.fan is None:
            return
        if not any(part.family in WITH_LAW for part in self.parts):
            raise UsageError(
                f"Expected --tree with {' or '.join(WITH_LAW)}, found the drafter {self.drafter}."
            )
        if self.branches > self.fan.branches:
            raise UsageError(
                f"Expected at most {self.fan.branches} branches, which are all of the tree, "
                f"found {self.branches}."
            )
        if len(self.fan.children) > self.length:
            raise UsageError(
                f"Expected a tree that forks down to depth {self.length}, the largest of a draft, found "
                f"{len(self.fan.children)} depths; raise --length."
            )
        widest = max(self.fan.children)
        if self.draft_top_k and widest > self.draft_top_k:
            raise UsageError(
                f"Expected at most {self.draft_top_k} children, which are all that the drafter may draw, "
                f"found {widest}; raise --draft-top-k."
            )
        if self.draft_top_p < 1.0 and len(self.fan.children) > 1:
            raise UsageError(
                "Expected --draft-top-p 1 with a tree that forks below the anchor: where fewer tokens are "
                "left than children, a smaller tree would not be the recorded one, cut."
            )

    def apart(self, device: str) -> bool:
        """Whether the recorder has a process of its own.

        `auto` gives it one where decoding has a GPU to itself; on a CPU the two would share cores.
        """
        return device == "cuda" if self.recorder == "auto" else self.recorder == "process"

    @property
    def live_shape(self) -> DraftShape:
        """What live rounds draft: the policy's shape, or the largest."""
        shape = self.policy.shape
        return DraftShape(
            self.length if shape.length is None else shape.length,
            self.branches * len(self.parts) if shape.branches is None else shape.branches,
        )

    @property
    def kind(self) -> ProposalKind:
        """The proposal kind: drawn on shared noise for rules that emit choices, on its own for others."""
        temperature = self.defaults.sampling.temperature
        return kind_of(self.parts, self.policy, temperature, self.draft_temperature, self.proposal)

    @property
    def parts(self) -> list[Part]:
        """The drafters of the union."""
        return parse_drafter(self.drafter)

    @property
    def draft_sampling(self) -> DraftSampling:
        """How q is made; the target's temperature unless one was given."""
        temperature = self.draft_temperature
        if temperature is None:
            temperature = self.defaults.sampling.temperature
        return DraftSampling(temperature, self.draft_top_k, self.draft_top_p)


def control_takes_all(policy: Policy) -> str:
    """Why lanes of an adaptive policy decode together."""
    return f"the control {policy.control.name} follows rounds of all lanes"


def kind_of(
    parts: Sequence[Part],
    policy: Policy,
    temperature: float,
    draft_temperature: float | None,
    proposal: ProposalKind | None,
) -> ProposalKind:
    """How drafts are made, where nobody asked for something else: as the policy's rule wants them."""
    drawn = any(part.family in WITH_LAW for part in parts)
    if not drawn or temperature == 0 or draft_temperature == 0:
        return ProposalKind.DETERMINISTIC
    if proposal is not None:
        return proposal
    drawn_alone = policy.rule.judges_q(RuleContext(temperature, ProposalKind.INDEPENDENT))
    return ProposalKind.INDEPENDENT if drawn_alone else ProposalKind.SHARED
