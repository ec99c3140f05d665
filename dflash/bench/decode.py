"""Tokens a second of the engine, plain and speculative, with and without recording, at several lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dflash.bench.decode_clock import Clock, Run
from dflash.bench.decode_models import Subject
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.features import FeatureMode
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.files import with_ids
from dflash.engine.prompts.prompt import Prompt
from dflash.engine.request import Request
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.kernels.feature_codes import Encoding
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import StepTime
from dflash.target.sampling import Sampling

PLAIN, SPECULATIVE = "plain", "speculative"
RECORDED, HOST, GROUPS = "recorded", "host", "in groups"
# of a list whose requests end before those of the one before, in seconds
SHORTEST = 1e-9


class Kept(NamedTuple):
    """What a recorded side keeps: hidden states as `dtype`; rows of every position if it is `dense`."""

    features: FeatureMode = FeatureMode.FINGERPRINT
    dtype: Encoding = "bf16"
    dense: bool = False

    @property
    def name(self) -> str:
        """How it is printed."""
        features = {
            FeatureMode.NONE: [RECORDED, "without features"],
            FeatureMode.FINGERPRINT: [RECORDED],
            FeatureMode.ALL: [RECORDED, f"with features in {self.dtype}"],
        }
        return " ".join([*features[self.features], *(["densely"] if self.dense else [])])

    def facts(self) -> dict[str, Any]:
        """The form that documents hold."""
        dtype = self.dtype if self.features == FeatureMode.ALL else None
        return {"features": str(self.features), "feature_dtype": dtype, "dense": self.dense}


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """What is decoded: one request a lane, all begun together, each of `new_tokens` tokens; or prompts.

    Attributes:
        policies: of the speculative sides, each beside the others.
        lists: of prompts: if there are any, decoded one after the other in the lanes, each to the end of its
            answer or to `new_tokens` tokens.
        kept: what recorded sides keep, one each; plain ones draft from no position.
        groups: whether speculative sides without control run in two groups of lanes, too.
    """

    length: int
    branches: int = 1
    temperature: float = 0.0
    prompt_tokens: int = 64
    new_tokens: int = 256
    repeats: int = 5
    kept: tuple[Kept, ...] = (Kept(),)
    host: bool = False
    chain: int | None = None
    groups: bool = False
    policies: tuple[str, ...] = ("match",)
    step_time: StepTime | None = None
    lists: tuple[tuple[Prompt, ...], ...] = ()

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Of all lists."""
        return tuple(prompt for each in self.lists for prompt in each)


class Side(NamedTuple):
    """A way to decode: plain or speculative, and recorded, or through the host, or in groups, or none of it.

    Attributes:
        manner: through the host, or in groups.
        policy: which of several speculates.
        kept: what of it is recorded, if anything is.
    """

    decoding: str
    manner: str | None = None
    policy: str | None = None
    kept: Kept | None = None

    @property
    def name(self) -> str:
        """How the side is printed."""
        manner = self.kept.name if self.kept else self.manner
        return " ".join(word for word in (self.policy or self.decoding, manner) if word)

    @property
    def bare(self) -> Side:
        """The same decoding, not recorded."""
        return self._replace(manner=None, kept=None)


@dataclass(frozen=True, slots=True)
class SideResult:
    """All runs of a side at some number of lanes."""

    side: Side
    lanes: int
    runs: tuple[Run, ...]

    @property
    def tokens_per_second(self) -> float:
        """Median over the runs, prompts left out."""
        return median(run.tokens / run.decode for run in self.runs)

    @property
    def part_rates(self) -> list[float]:
        """The same of every list of prompts, from the end of the one before to its own."""
        parts = zip(*(run.parts for run in self.runs), strict=True)
        return [median(part.tokens / max(part.decode, SHORTEST) for part in of_runs) for of_runs in parts]

    @property
    def emitted_per_round(self) -> float:
        """Tokens that a lane's round emits."""
        return sum(run.tokens for run in self.runs) / sum(run.rounds for run in self.runs)

    @property
    def round_us(self) -> float:
        """Microseconds a round, median over the runs."""
        return median(1e6 * run.decode * self.lanes / run.rounds for run in self.runs)


class FixedPrompt:
    """A conversation of one request that is there already."""

    def __init__(self, order: int, request: Request) -> None:
        self.order = order
        self._request: Request | None = request

    def next(self, answer: str | None) -> Request | None:
        """The request, once."""
        request, self._request = self._request, None
        return request


class NoSink:
    """Takes rows and keeps none."""

    def opened(self, lane: Lane) -> None:
        """A request starts."""

    def row(self, lane: Lane, row: Row) -> None:
        """Drop a row."""

    def closed(self, lane: Lane) -> None:
        """A request has ended."""

    def ended(self, order: int) -> None:
        """A prompt has no more requests."""


def settings_of(
    subject: Subject, side: Side, lanes: int, given: DecodeSettings, folder: Path
) -> RecordSettings:
    """What a side records with."""
    drafts = side.decoding == SPECULATIVE
    kept = side.kept or Kept(FeatureMode.NONE)
    return RecordSettings(
        output=folder / "unused.parquet",
        drafter=subject.drafter if drafts else "none",
        policy=parse_policy((side.policy or given.policies[0]) if drafts else "match"),
        defaults=Defaults(Sampling(given.temperature), seed=0, max_new_tokens=given.new_tokens),
        length=given.length if drafts else 0,
        branches=given.branches if drafts else 1,
        lanes=lanes,
        features=kept.features,
        feature_dtype=kept.dtype,
        dense=kept.dense,
        target_impl="native",
        draft_impl="native" if drafts else "generic",
        rounds="host" if side.manner == HOST else "device",
        keep_host=False,
        chain=given.chain,
        overlap="groups" if side.manner == GROUPS else "none",
        step_time=given.step_time,
    )


class Decoder:
    """One side at some number of lanes, ready to run again and again."""

    def __init__(self, subject: Subject, side: Side, lanes: int, given: DecodeSettings, folder: Path) -> None:
        self.side, self.lanes, self.given, self.folder = side, lanes, given, folder
        self.subject = subject
        settings = settings_of(subject, side, lanes, given, folder)
        self.settings = settings
        self.session: Session = subject.session(settings)
        engine = self.session.engine
        if isinstance(engine, DeviceEngine):
            engine.quiet = side.kept is None
            # one prompt a lane is timed apart; many are read under the rounds of others, as in a recording
            engine.overlaps = bool(given.prompts)
        self._count = 0

    def run(self) -> Run:
        """Decode one request a lane, or all prompts."""
        prompts = self.conversations()
        self.session.engine.control.restart()
        clock = Clock(self.session.target.device)
        with clock.watching(self.session.engine):
            if self.side.kept:
                self._count += 1
                output = self.folder / f"{self._count}.parquet"
                self.session.settings = replace(self.settings, output=output)
                self.session.record(prompts, on_request=clock.end)
                output.unlink()
            else:
                for lane in self.session.engine.run(prompts, NoSink()):
                    clock.end(lane)
        return clock.run([len(each) for each in self.given.lists])

    def conversations(self) -> list[Any]:
        """What is decoded."""
        if self.given.prompts:
            return list(self.session.conversations(with_ids(self.given.prompts), check=True))
        return [FixedPrompt(order, request) for order, request in enumerate(self._requests())]

    def _requests(self) -> Iterator[Request]:
        for place in range(self.lanes):
            yield Request(
                str(place), self.subject.prompt(place, self.given.prompt_tokens), "",
                Sampling(self.given.temperature), 0, self.given.new_tokens, (), 0, place,
            )  # fmt: skip


class FirstToken(NamedTuple):
    """Milliseconds from a prompt to its first token, in a session that has decoded nothing before.

    Kernels were compiled in this process before, so that graphs and buffers are what is left to make.
    """

    cold: float
    warm: float


def first_token(subject: Subject, given: DecodeSettings) -> FirstToken:
    """Time the first token with and without a warm-up, speculating in one lane."""
    found = []
    for warm in (False, True):
        decoder = Decoder(subject, Side(SPECULATIVE), 1, given, Path())
        engine = decoder.session.engine
        if isinstance(engine, DeviceEngine):
            engine.overlaps = False
        if warm:
            engine.warm_up(given.prompt_tokens + given.new_tokens)
        asked = decoder.conversations()[:1]
        clock = Clock(decoder.session.target.device)
        with clock.watching(engine):
            rows: Any = engine.run(asked, NoSink())
            next(rows)
            rows.close()
        found.append(1e3 * clock.first)
    return FirstToken(*found)


def sides_of(given: DecodeSettings, lanes: int) -> list[Side]:
    """The sides that are compared at some number of lanes; one policy has no name."""
    found = list(_manners(Side(PLAIN), given))
    for policy in given.policies:
        speculative = Side(SPECULATIVE, None, policy if len(given.policies) > 1 else None)
        found += _manners(speculative, given)
        if given.groups and lanes > 1 and not parse_policy(policy).control.adaptive:
            found.append(speculative._replace(manner=GROUPS))
    return found


def _manners(side: Side, given: DecodeSettings) -> Iterator[Side]:
    """A side as it is, recorded, and through the host."""
    yield side
    for kept in given.kept:
        if side.decoding == SPECULATIVE or not kept.dense:
            yield side._replace(kept=kept)
    if given.host:
        yield side._replace(manner=HOST)


@dataclass(slots=True)
class Comparison:
    """Sides at several numbers of lanes.

    Attributes:
        results: of all sides at one number of lanes after the other.
        interrupted: whether Ctrl-C left some out, or repeats of some.
        step_times: by lanes, as they were given or taken.
    """

    results: list[SideResult] = field(default_factory=list)
    interrupted: bool = False
    step_times: dict[int, StepTime] = field(default_factory=dict)


def measure(
    subject: Subject,
    given: DecodeSettings,
    lanes: Sequence[int],
    say: Callable[[str], None] = lambda text: None,
    step_time_of: Callable[[int], StepTime | None] = lambda lanes: None,
) -> Comparison:
    """Decode every side at every number of lanes, sides in turn so that drift hits all alike.

    The first run of each, which compiles kernels and captures graphs, is not counted. Ctrl-C ends it with
    what was measured by then, of every number of lanes at which all sides have run.

    Args:
        step_time_of: takes step times at a number of lanes, where a control needs some and none are given.
    """
    found = Comparison()
    timed = any(parse_policy(policy).control.timed for policy in given.policies)
    for count in lanes:
        runs: dict[Side, list[Run]] = {side: [] for side in sides_of(given, count)}
        try:
            own = given
            if timed and given.step_time is None:
                own = replace(given, step_time=step_time_of(count))
            if own.step_time is not None:
                found.step_times[count] = own.step_time
            _run_in_turn(subject, own, count, runs, say)
        except KeyboardInterrupt:
            found.interrupted = True
        if all(runs.values()):
            found.results += [SideResult(side, count, tuple(own)) for side, own in runs.items()]
        if found.interrupted:
            break
    return found


def _run_in_turn(
    subject: Subject,
    given: DecodeSettings,
    lanes: int,
    runs: dict[Side, list[Run]],
    say: Callable[[str], None],
) -> None:
    """Add the runs of each side."""
    with TemporaryDirectory() as folder:
        decoders = [Decoder(subject, side, lanes, given, _inside(folder, side)) for side in runs]
        for decoder in decoders:
            say(f"{lanes} lanes: warming up {decoder.side.name}")
            decoder.run()
        for repeat in range(given.repeats):
            order = decoders if repeat % 2 == 0 else decoders[::-1]
            for decoder in order:
                runs[decoder.side].append(decoder.run())


def _inside(folder: str, side: Side) -> Path:
    """A new folder for a side's files."""
    made = Path(folder) / side.name.replace("/", "-")
    made.mkdir()
    return made


def peer_prompts(subject: Subject, given: DecodeSettings, count: int) -> list[list[int]]:
    """Token ids of the first prompts, as lanes are given them."""
    if not given.prompts:
        return [subject.prompt(place, given.prompt_tokens) for place in range(count)]
    settings = settings_of(subject, Side(PLAIN, HOST), 1, given, Path())
    conversations = subject.session(settings).conversations(with_ids(given.prompts[:count]), check=True)
    requests = [conversation.next(None) for conversation in conversations]
    return [request.prompt_tokens for request in requests if request is not None]
