"""A recording session: load the models, decode the prompts, leave a draft file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from dflash.drafters.base import Drafter, DraftShape
from dflash.drafters.build import DraftSettings, build_drafter
from dflash.engine.control import LaneControl
from dflash.engine.dense.choice import choose_dense
from dflash.engine.device.choice import choose_engine
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.features import FeatureMode, Features, Fingerprint, default_taps
from dflash.engine.header import RunSettings, build_header
from dflash.engine.implementation import settle_drafter, settle_target
from dflash.engine.judge import Judge
from dflash.engine.lane import Lane
from dflash.engine.loop import Conversation, Engine, Sink
from dflash.engine.memory import Free, MemoryEstimate, RanOutOfMemory, estimate
from dflash.engine.metrics import Metrics
from dflash.engine.output import Part
from dflash.engine.pace import PaceWatch
from dflash.engine.prompts.arrivals import Arrivals
from dflash.engine.prompts.chat import ChatConversation, Ordinals
from dflash.engine.prompts.errors import PromptError
from dflash.engine.prompts.prompt import Prompt
from dflash.engine.recorder.choice import AnyRecorder, open_recorder
from dflash.engine.recording import Recording
from dflash.engine.resume import ResumedConversation
from dflash.engine.settings import RecordSettings
from dflash.engine.shard import PromptsDigest, Shard, run_id_of
from dflash.errors import UsageError
from dflash.policy.block import Block
from dflash.policy.context import context_from_header
from dflash.target.load import Target
from dflash.target.model import TrunkModel
from dflash.target.model_step import ModelStep
from dflash.target.native import NativeTrunk
from dflash.target.native_layers import Way
from dflash.target.noise import TargetNoise

Entry = Prompt | PromptError
USUAL_CONTEXT = 512


class Survey(NamedTuple):
    """What a list of prompts comes to: requests at most, and tokens of the longest trunk at most."""

    turns: int
    context: int


class Session:
    """The parts of one recording, wired together.

    Attributes:
        header: Of the draft file.
        left: The journal of a recording that broke off.
        memory: What it was estimated to take, once `fit` was asked.
        context: Tokens that trunks are expected to come to.
        part: Which file of which run, where shards agreed on that.
        generic_remark: Why the target is not computed natively where it might have been.
        rounds_remark: Why rounds do not run on the device, or not in groups, where that was asked for.
    """

    def __init__(self, target: Target, settings: RecordSettings) -> None:
        # ids beyond the tokenizer's are padding, and are never stored
        settings = replace(settings, store_topk=min(settings.store_topk, len(target.tokenizer)))
        self.target, self.settings, self.generic_remark = settle_target(target, settings)
        self.stop = threading.Event()
        self.lost: list[PromptError] = []
        self.left: Path | None = None
        self._recorder: AnyRecorder | None = None
        self.memory: MemoryEstimate | None = None
        self.context = min(target.window, USUAL_CONTEXT)
        self._reader_left = False
        self._ordinals, self._order = Ordinals(), 0
        self.part: Part | None = None
        self.rounds_remark: str | None = None
        self._wire()

    def _wire(self) -> None:
        vocabulary = int(self.target.model.config.get_text_config().vocab_size)
        self.noise = TargetNoise(vocabulary, keep=64 * self.settings.lanes)
        self.drafter = self._drafter()
        self.taps = self._taps()
        self.header = build_header(self.target, self.drafter, self._run_settings())
        self.trunk = self._trunk()
        self.engine = self._engine()
        self._warm = False

    def fit(self, context: int, free: Free) -> MemoryEstimate:
        """Estimate what trunks of at most `context` tokens take, and go on with the lanes that fit.

        Raises:
            TooLittleMemory: Not even one does.
        """
        found = estimate(self.target, self.drafter, self.settings, context)
        lanes = found.lanes_that_fit(free)
        if lanes < self.settings.lanes:
            self.settings = replace(self.settings, lanes=lanes)
            self._wire()
            found = replace(found, lanes=lanes)
        self.memory, self.context = found, context
        self.header["memory"] = found.facts()
        return found

    def conversations(self, entries: Iterable[Entry], *, check: bool = False) -> Iterator[ChatConversation]:
        """Prompts ready to decode; what cannot be used goes to `lost`, or is raised if `check` is set."""
        self._order = 0
        for entry in entries:
            if (conversation := self.conversation(entry, check=check)) is not None:
                yield conversation

    def conversation(self, entry: Entry, *, check: bool = False) -> ChatConversation | None:
        """The next prompt, ready to decode; None if it cannot be used or is another shard's."""
        shard = self.settings.shard or Shard(0, 1)
        try:
            if isinstance(entry, PromptError):
                raise entry
            # prompts of other shards count too: equal ones share out the ordinals of their noise
            place = shard.place(self._order)
            found = ChatConversation(
                place or 0, entry, self.target, self.settings.defaults, self._ordinals, self.lost.append
            )
        except PromptError as error:
            if check:
                raise
            self.lost.append(error)
            return None
        self._order += 1
        return None if place is None else found

    def survey(self, entries: Iterable[Entry], *, check: bool = False) -> Survey:
        """Look through a list of prompts that will be read again to be decoded, and keep none of them.

        Raises:
            PromptError: One cannot be used, and `check` is set.
        """
        turns = context = 0
        digest = PromptsDigest(repr(self.settings.defaults))
        for entry in entries:
            if isinstance(entry, Prompt):
                digest.add(entry)
            if (found := self.conversation(entry, check=check)) is not None:
                turns += len(found.prompt.turns)
                context = max(context, found.room)
        self.forget()
        if (shard := self.settings.shard) is not None:
            self.part = Part(run_id_of(self.header, shard, digest.hexdigest()), *shard)
        return Survey(turns, context)

    def forget(self) -> None:
        """Treat the next prompts as the first of the run: places and ordinals start anew."""
        self._ordinals, self._order = Ordinals(), 0
        self.lost.clear()

    def record(
        self,
        conversations: Iterable[Conversation],
        on_text: Callable[[str], None] | None = None,
        on_request: Callable[[Lane], None] = lambda lane: None,
        *,
        watch_pace: bool = False,
    ) -> Recording:
        """Decode, and publish what was recorded: all of it, or up to where `stop` was set or the reader left.

        What was recorded before any other error stays in the journal, `left`.

        Args:
            on_text: Told of the answers as they grow.
            on_request: Told of every lane whose request has ended.
            watch_pace: Time plain rounds beside live ones, for a twentieth of their time; with several lanes
                or no drafter there is nothing to compare.

        Raises:
            BrokenPipeError: The reader of the streamed text left; the file is finished first.
            RanOutOfMemory: All that was recorded is in the journal.
        """
        settings = self.settings
        with open_recorder(settings, self.header, self.part, bool(self.taps), self.target.device) as recorder:
            self._recorder, started = recorder, perf_counter()
            conversations = self._resumed(conversations, recorder)
            metrics = self._metrics(recorder)
            sink: Sink = metrics or recorder
            if watch_pace and self._has_a_pace:
                sink = PaceWatch(self.engine, sink)
            try:
                if metrics:
                    metrics.begin()
                self._make_ready(recorder)
                self._decode(conversations, sink, on_text, on_request)
                interrupted = self.stop.is_set()
                published = recorder.finish("interrupted" if interrupted else "finished")
            except (torch.OutOfMemoryError, MemoryError) as error:
                self.left = recorder.leave()
                raise RanOutOfMemory(error, settings.lanes, self.left is not None) from error
            except BaseException:
                self.left = recorder.leave()
                raise
            finally:
                if metrics:
                    metrics.write()
                self._recorder = None
        if self._reader_left:
            raise BrokenPipeError
        return Recording(
            published,
            recorder.totals,
            perf_counter() - started,
            interrupted,
            self.lost,
            sink.verdict() if isinstance(sink, PaceWatch) else None,
            metrics.failed if metrics else None,
            self.memory.facts() if self.memory else None,
            recorder.pressure.blocked_seconds,
        )

    def _resumed(
        self, conversations: Iterable[Conversation], recorder: AnyRecorder
    ) -> Iterable[Conversation]:
        if isinstance(self.engine, DeviceEngine):
            # what is kept of a request goes to the recorder in its turn, by no sink
            self.engine.defers = not recorder.keeps
        if not recorder.keeps:
            return conversations
        if isinstance(conversations, Arrivals):
            conversations.through(lambda one: ResumedConversation(one, recorder, self.target))
            return conversations
        return (ResumedConversation(one, recorder, self.target) for one in conversations)

    def sync(self) -> None:
        """Make what the recorder was given survive a power cut: nothing will be recorded for a while."""
        if self._recorder is not None:
            self._recorder.sync()

    def _metrics(self, recorder: AnyRecorder) -> Metrics | None:
        """What keeps the file of metrics, if there is to be one."""
        path, shard = self.settings.metrics, self.settings.shard
        if path is None:
            return None
        labels = {} if shard is None else {"shard": f"{shard.index}/{shard.count}"}
        return Metrics(recorder, path, lambda: recorder.pressure, lambda: self.engine.wasted_rounds, labels)

    @property
    def warms_up(self) -> bool:
        """Whether kernels are compiled and graphs captured before a prompt would wait for them."""
        asked = self.settings.warm_up
        return self.target.device.type == "cuda" if asked is None else asked

    @property
    def _has_a_pace(self) -> bool:
        """Whether plain rounds can be timed beside live ones; none fits between two on the device."""
        on_device = isinstance(self.engine, DeviceEngine)
        return self.settings.lanes == 1 and bool(self.drafter.headers()) and not on_device

    def _make_ready(self, recorder: AnyRecorder) -> None:
        """Warm up while a recorder starts, so that nothing of either is left for the first rounds."""
        if self.warms_up and not self._warm:
            self.engine.warm_up(self.context)
            self._warm = True
        recorder.await_start()

    def _decode(
        self,
        conversations: Iterable[Conversation],
        sink: Sink,
        on_text: Callable[[str], None] | None,
        on_request: Callable[[Lane], None],
    ) -> None:
        tell = None if on_text is None else self._guarded(on_text)
        try:
            for lane in self.engine.run(conversations, sink, tell, self.stop.is_set):
                on_request(lane)
        except KeyboardInterrupt:
            self.stop.set()
        except BrokenPipeError:
            self._reader_left = True
            self.stop.set()

    def _guarded(self, on_text: Callable[[str], None]) -> Callable[[str], None]:
        """`on_text`, but a reader that left stops the run between two rounds instead of inside of one."""

        def tell(text: str) -> None:
            try:
                on_text(text)
            except BrokenPipeError:
                self._reader_left = True
                self.stop.set()

        return tell

    def _drafter(self) -> Drafter:
        settings = self.settings
        draft = DraftSettings(
            settings.kind,
            settings.draft_sampling,
            settings.draft_temperature is None,
            settings.store_topk,
            settings.lanes,
            1024,
            settings.warm,
            settings.fan,
            settings.length,
            settings.draft_quant,
        )
        drafter = build_drafter(settings.parts, self.target, self.noise, draft)
        self.settings = settle_drafter(drafter, settings, Way(settings.numerics))
        return drafter

    def _taps(self) -> tuple[int, ...]:
        """What the file keeps of the target's hidden states: of those the drafter reads, if it reads any."""
        if self.settings.features == FeatureMode.NONE:
            return ()
        layers = int(self.target.model.config.get_text_config().num_hidden_layers)
        return self.drafter.taps or default_taps(layers)

    def _trunk(self) -> TrunkModel:
        given = (self.target.model, self.settings.lanes, 1024, self.taps or self.drafter.taps)
        if self.settings.target_impl == "generic":
            return TrunkModel(*given)
        way = Way(self.settings.numerics)
        captured = self.settings.target_impl == "captured"
        step = ModelStep(self.target.model, given[-1], way) if captured else None
        return NativeTrunk(self.target.name, *given, way=way, prefills=True, step=step)

    def _engine(self) -> Engine:
        settings = self.settings
        hidden = int(self.target.model.config.get_text_config().hidden_size)
        # what replay will read, so that both decide alike
        context = context_from_header(self.header)
        rule = settings.policy.rule
        branching = settings.live_shape.branches > 1 or len(settings.parts) > 1
        rule.refuse(context, branching)
        self._refuse_cuts()
        emits_choice = not rule.draws_residuals(context)
        features = None
        if self.taps:
            prints = Fingerprint(self.taps, hidden, self.target.device)
            features = Features(settings.features, prints, settings.feature_dtype)
        judge = Judge(
            self.noise,
            settings.store_topk,
            emits_choice=emits_choice,
            scaled=rule.name == Block.name,
            trunk_is_choices=emits_choice and settings.policy.is_lossless(context),
        )
        largest = self._largest
        control = LaneControl(settings.policy, largest, settings.lanes, settings.step_time)
        parts = (self.target, self.trunk, self.drafter, control, context, judge, features, None)
        engine, self.rounds_remark, facts = choose_engine(parts, settings)
        self.header["engine"] |= facts
        if settings.dense:
            engine.dense = choose_dense(engine, settings, largest)
        return engine

    def _refuse_cuts(self) -> None:
        """Refuse cuts by a confidence that a drafter does not state."""
        policy = self.settings.policy
        asked = policy.shape.after_drafting.cuts() | ({"survival"} & set(policy.control.varies))
        for drafter in self.drafter.headers():
            if unknown := sorted(asked - set(drafter["cuts"])):
                raise UsageError(
                    f"The drafter {drafter['name']} states no confidence in every draft, which the cut by "
                    f"{unknown[0]} needs. Cut by length, branches or first_positions."
                )

    @property
    def _largest(self) -> DraftShape:
        """The largest draft: a union has the branches of each of its drafters."""
        return DraftShape(self.settings.length, self.settings.branches * max(1, len(self.drafter.headers())))

    def _run_settings(self) -> RunSettings:
        settings, defaults = self.settings, self.settings.defaults
        return RunSettings(
            sampling=defaults.sampling,
            seed=defaults.seed,
            policy=settings.policy,
            length=settings.length,
            branches=self._largest.branches,
            lanes=settings.lanes,
            store_topk=settings.store_topk,
            taps=self.taps,
            features=settings.features,
            feature_dtype=settings.feature_dtype,
            keep_host=settings.keep_host,
            dense=settings.dense,
            step_time=settings.step_time,
            target_impl=settings.target_impl,
            numerics=settings.numerics,
            shard=settings.shard,
        )
