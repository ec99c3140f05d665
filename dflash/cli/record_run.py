"""What `dflash record` does with its options: read prompts, load, decode, say what came of it."""

from __future__ import annotations

import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dflash.cli.outcome import Exit
from dflash.cli.output import Level, detail, document_text, level, talk, warn
from dflash.cli.record_answers import Printer, chosen, tellers
from dflash.cli.record_options import load, record_settings
from dflash.cli.record_prompts import PromptSource
from dflash.draftfile.run import refuse_as_output
from dflash.engine.features import bytes_a_token
from dflash.engine.free_memory import free_memory
from dflash.engine.loop import Conversation
from dflash.engine.memory import CONTEXT, size
from dflash.engine.metrics import check_place
from dflash.engine.output import check_output
from dflash.engine.pace import Verdict
from dflash.engine.prompts.arrivals import Arrivals
from dflash.engine.recording import Recording, summary
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.errors import UsageError
from dflash.target.catalogue import DEFAULT

# seconds for which the recorder may hold decoding up without a word
WORTH_TELLING = 0.005


class StreamOfShards(UsageError):
    """Prompts that arrive once, for shards that each must see all of them."""

    def __init__(self) -> None:
        super().__init__(
            "Expected words or a file of --prompts with --shard: every shard reads the whole list, and a "
            "stream arrives at one of them."
        )


def run(prompts: Sequence[str], prompt_file: str | None, as_json: bool, options: Mapping[str, Any]) -> int:
    """Record; returns the exit code."""
    if prompts and prompt_file:
        raise UsageError("Expected prompts as words or in --prompts, found both.")
    if as_json and options["json_lines"]:
        raise UsageError("Expected --json or --json-lines, found both.")
    settings = record_settings(options)
    source = PromptSource(prompts, prompt_file)
    if source.stream and settings.shard is not None:
        raise StreamOfShards()
    source.check(options["skip_bad"])
    refuse_as_output([settings.output, settings.metrics], _read(settings, prompt_file, options["cost"]))
    if settings.output.parent == options["output"]:
        settings.output.parent.mkdir(exist_ok=True)
    if settings.metrics is not None:
        check_place(settings.metrics)
    found = check_output(settings.output, overwrite=settings.overwrite, resume=settings.resume)
    if settings.resume and not found:
        talk(f"nothing to resume: there is no recording of {settings.output} yet, so all of it is run")
    session = Session(load(options), settings)
    for remark in (session.generic_remark, session.rounds_remark):
        if remark is not None:
            talk(remark)
    answers = chosen(
        bool(prompts) or source.typed, settings.lanes, as_json=as_json, json_lines=options["json_lines"]
    )
    total: int | None = None
    context = min(session.target.window, CONTEXT + settings.defaults.max_new_tokens)
    if not source.stream:
        total, longest = session.survey(source.entries(), check=not options["skip_bad"])
        context = longest or context
    _fit(session, context)
    _announce(session, options["drafter"])
    session.engine.before_rest = lambda: talk("scoring dense rows of what was answered")
    with (
        _interrupts(session) as interrupts,
        _journal_told(session),
        tellers(answers, total) as told,
    ):
        recording = session.record(
            _conversations(session, source, interrupts.waiting),
            told.text,
            told.request,
            watch_pace=level() >= Level.NORMAL,
        )
    code = _close(recording, total, interrupts.number, told.printer if as_json else None)
    if code == Exit.DONE and told.printer.failed is not None:
        code = Exit.LOST
    if (remark := session.drafter.remark()) is not None:
        talk(remark)
    if recording.pace is not None and (recording.pace.lost or recording.pace.paid):
        talk(_paid(recording.pace))
    return code


def _announce(session: Session, asked: str | None) -> None:
    """Say what drafts where nobody asked for a drafter, what is kept, and what will take a while."""
    settings = session.settings
    if asked is None and settings.drafter == "ngram":
        talk(f"drafter: ngram, as the shipped one is for {DEFAULT.name}; --drafter chooses another")
    if session.taps:
        hidden = int(session.target.model.config.get_text_config().hidden_size)
        each = bytes_a_token(settings.features, len(session.taps), hidden, settings.feature_dtype)
        kept = f"all in {settings.feature_dtype}" if settings.features == "all" else settings.features
        talk(f"features: {kept}, {each} bytes a committed token, before compression")
    if session.warms_up and session.target.device.type == "cuda":
        talk("warming up; the first run on a machine compiles kernels, for a minute or two")


def _fit(session: Session, context: int) -> None:
    """Tell what the recording will take, and decode in fewer lanes where not all fit."""
    asked, free = session.settings.lanes, free_memory(session.target.device)
    found = session.fit(context, free)
    if found.lanes < asked:
        warn(f"{asked} lanes do not fit into memory, so {found.lanes} will do: {found.text()}")
    detail(found.text())
    left = {"host": free.host} if found.shared else {"device": free.device, "host": free.host}
    told = [f"{place} {size(count)}" for place, count in left.items() if count is not None]
    detail(f"free: {', '.join(told) or 'nobody tells'}")


def _read(settings: RecordSettings, prompt_file: str | None, cost: Path | None) -> list[Path]:
    """The files that a recording reads, as far as they are files."""
    stored = [Path(part.place) for part in settings.parts if part.family == "file" and part.place]
    prompts = [] if prompt_file in (None, "-") else [Path(str(prompt_file))]
    return [*stored, *settings.warm, *prompts, *([] if cost is None else [cost])]


@contextmanager
def _journal_told(session: Session) -> Iterator[None]:
    """Says what a recording that breaks off leaves, and what can be done with it."""
    try:
        yield
    finally:
        if session.left is not None:
            path = shlex.quote(str(session.left))
            warn(
                f"the recording broke off; what it had is in {path}: `dflash recover {path}` makes a draft "
                "file of it, and the same command with --resume goes on with it."
            )


class Interrupts:
    """What ends a run after the round in progress; a second signal, or one at the prompt, does at once.

    Attributes:
        number: the signal that came last.
    """

    def __init__(self, session: Session) -> None:
        self.number: int | None = None
        self._session, self._waiting = session, False

    def came(self, number: int, frame: Any) -> None:
        """Take a signal."""
        self.number = number
        if self._waiting or self._session.stop.is_set():
            raise KeyboardInterrupt
        self._session.stop.set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While nothing is decoded, because a prompt is awaited."""
        if _idle():
            self._session.sync()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False


@contextmanager
def _interrupts(session: Session) -> Iterator[Interrupts]:
    """Ctrl-C, and what ends a job or a container, end the run; what it recorded becomes a file."""
    found = Interrupts(session)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, found.came) for number in numbers]
    try:
        yield found
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _conversations(
    session: Session, source: PromptSource, waiting: Callable[[], AbstractContextManager[None]]
) -> Iterator[Conversation]:
    """A list as it stands; a stream as it comes, in a thread where other lanes go on meanwhile."""
    entries = source.entries()
    if not source.stream:
        return session.conversations(entries)
    if session.settings.lanes > 1 and not source.person:
        return Arrivals(entries, session.conversation, waiting)
    return _awaited(session.conversations(entries), waiting)


def _awaited(
    conversations: Iterator[Conversation], waiting: Callable[[], AbstractContextManager[None]]
) -> Iterator[Conversation]:
    while True:
        with waiting():
            conversation = next(conversations, None)
        if conversation is None:
            return
        yield conversation


def _idle() -> bool:
    """Whether nothing has arrived on stdin yet."""
    try:
        return not select.select([sys.stdin], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def _close(recording: Recording, total: int | None, number: int | None, printer: Printer | None) -> int:
    """Say what came of it.

    Args:
        total: requests that were asked for, if that is known.
        number: of the signal that ended it, if one did.
        printer: of the document, if one is wanted.

    Returns:
        The exit code.
    """
    if recording.unwritten is not None:
        warn(f"the last metrics could not be written: {recording.unwritten}")
    for error in recording.lost:
        warn(f"left out: {error}")
    document = summary(recording)
    if recording.interrupted:
        talk(_cut_short(document, total))
    if printer is not None:
        if waited := _waited(document):
            talk(waited)
        printer(document_text(document))
    else:
        _say(document)
    if recording.interrupted:
        return Exit.INTERRUPTED if number is None else Exit(128 + number)
    return Exit.LOST if recording.lost else Exit.DONE


def _cut_short(document: Mapping[str, Any], total: int | None) -> str:
    """How much of a run an interruption cost; nobody knows how many requests a stream would have had."""
    begun, cut = document["requests"], document["finish"].get("interrupted", 0)
    left = 0 if total is None else max(0, total - begun)
    return f"interrupted: {cut} of {begun + left} requests cut short" + (
        f", {left} not begun" if left else ""
    )


def _paid(pace: Verdict) -> str:
    found = "did not pay" if pace.lost else "paid"
    told = (
        f"speculation {found} on this machine, {pace.speed_up:.2f}x of plain decoding: a round of "
        f"{pace.live_us / 1e3:.3g} ms gave {pace.tau:.2f} tokens, a plain round beside it took "
        f"{pace.plain_us / 1e3:.3g} ms for one"
    )
    advice = "; a shorter --length or fewer --branches may pay, --length 0 decodes plainly"
    return told + advice if pace.lost else told


def _waited(document: Mapping[str, Any]) -> str:
    blocked = document["blocked_seconds"]
    told = f"decoding waited {blocked:.2f} s for the recorder, which fell behind"
    return told if blocked > WORTH_TELLING else ""


def _say(document: Mapping[str, Any]) -> None:
    tau = (
        "no live rounds"
        if document["tau"] is None
        else f"tau {document['tau']:.2f} (accepted + 1 a live round)"
    )
    file = shlex.quote(document["file"])
    if document["kept"]:
        new = document["requests"] - document["kept"]
        talk(f"{document['kept']} requests were kept from before, {new} are new")
    if document["unasked"] and document["run_status"] == "finished":
        settings = "; ".join(f"{name} was {what}" for name, what in document["changed"].items())
        why = f", as settings have changed ({settings})" if settings else ""
        told = f"{document['unasked']} kept requests were not asked for again{why}"
        warn(f"{told}; they are at the end of the file")
    waited = _waited(document)
    talk(
        f"{document['tokens']} tokens, {tau}, {document['tokens_per_second']:.1f} tokens/s, "
        f"{document['file']} ({document['bytes'] / 1e3:.0f} kB), digest {document['content_digest'][:12]}"
        f"{f'; {waited}' if waited else ''}"
    )
    talk(f"replay: dflash replay {file} --policy match --policy threshold:t=0.7")
    talk(f"look:   dflash info {file}")
