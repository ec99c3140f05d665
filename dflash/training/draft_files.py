"""Recordings with the target's hidden states as texts to train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.draftfile.feature_values import decoded, encoding_of
from dflash.draftfile.identity import WARM, require_same
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.run import draft_paths
from dflash.draftfile.summary import Kind
from dflash.errors import UsageError
from dflash.target.load import Target
from dflash.training.corpus import Corpus, TopOpinions
from dflash.training.errors import NoFeatures, OtherTaps, TooFewRequests
from dflash.training.settings import TextSettings, TrainSettings

Tell = Any
Row = Mapping[str, Any]

_COLUMNS = (
    "request_id",
    "kind",
    "prompt_tokens",
    "node_token",
    "accepted_nodes",
    "bonus_token",
    "emitted",
    "slot_topk_token",
    "slot_topk_logit",
    "feature_values",
    "feature_scale",
)
# one request in so many is held out
_HELD_OUT = 8


@dataclass(slots=True)
class _Text:
    """One request: its tokens, the hidden states of all but the last, the top logits after each."""

    prompt: int
    tokens: list[int]
    states: list[NDArray[np.float32]] = field(default_factory=list)
    top: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = field(default_factory=list)


class RecordedTexts:
    """Requests of draft files that one target recorded; every eighth is held out.

    Raises:
        NoFeatures: A file has no hidden states.
        OtherTaps: Files that tapped different layers.
        EncodingUnknown: A file of a later version, whose hidden states cannot be read.
        IdentityMismatch: A file of another target.
        TooFewRequests: There is nothing to hold out.
    """

    def __init__(self, paths: Sequence[Path], target: Target, settings: TextSettings) -> None:
        self.files = [open_draft_file(path) for path in draft_paths(paths)]
        self.target = target
        self.settings = settings
        own = {"target": target.identity, "drafters": [], "tokenizer": target.tokenizer_identity}
        for file in self.files:
            require_same(file.header.raw, own, WARM, file.path)
        self.taps = _taps(self.files[0])
        for file in self.files:
            if _taps(file) != self.taps:
                raise OtherTaps(file.path, self.taps, _taps(file))
        self._texts: list[_Text] | None = None
        self._requests = sum(file.requests for file in self.files)
        if self._requests < _HELD_OUT:
            raise TooFewRequests(_HELD_OUT, self._requests)

    @property
    def description(self) -> str:
        """In words, for the card."""
        longest = self.settings.length
        return f"{self._requests} recorded requests of {len(self.files)} draft files, cut to {longest} tokens"

    @property
    def identity(self) -> Any:
        """The files, by what they hold."""
        return [file.content_digest for file in self.files]

    def with_taps(self, settings: TrainSettings) -> TrainSettings:
        """The settings of a drafter that reads what the files hold.

        Raises:
            UsageError: Other taps, or several rounds, were asked for.
        """
        if settings.drafter.taps not in ((), self.taps):
            raise UsageError(f"Expected --taps {','.join(map(str, self.taps))}, which the files hold.")
        if settings.text.rounds != 1:
            raise UsageError("Expected --rounds 1 with --draft-files: recorded texts are never new.")
        return replace(settings, drafter=replace(settings.drafter, taps=self.taps))

    def training(self, round_: int, into: Corpus | None, tell: Tell) -> Corpus:
        """All texts but the held-out ones."""
        if into is not None:
            return into
        return self._corpus([text for place, text in enumerate(self._read(tell)) if place % _HELD_OUT])

    def held_out(self, tell: Tell) -> Corpus:
        """Every eighth text."""
        return self._corpus(self._read(tell)[::_HELD_OUT])

    def _read(self, tell: Tell) -> list[_Text]:
        if self._texts is None:
            self._texts = []
            for file in self.files:
                for text in _requests(file):
                    self._texts.append(text)
                    tell("reading draft files", len(self._texts) / self._requests)
        return self._texts

    def _corpus(self, texts: Sequence[_Text]) -> Corpus:
        device, dtype = self.target.device, self.target.dtype
        length = min(self.settings.length, max(len(text.tokens) for text in texts))
        width, kept = texts[0].states[0].shape[-1], min(len(top[0]) for text in texts for top in text.top)
        shape = (len(texts), length)
        tokens = torch.zeros(shape, dtype=torch.long)
        own = torch.zeros(shape, dtype=torch.bool)
        states = torch.zeros(*shape, width, dtype=dtype)
        ids = torch.zeros(*shape, kept, dtype=torch.long)
        values = torch.zeros(*shape, kept, dtype=torch.float32)
        for place, text in enumerate(texts):
            count = min(length, len(text.tokens))
            tokens[place, :count] = torch.tensor(text.tokens[:count])
            own[place, text.prompt : count] = True
            known = np.concatenate(text.states)[:count]
            states[place, : len(known)] = torch.from_numpy(known).to(dtype)
            # the first opinion follows the prompt's last token
            for position, (best, logits) in enumerate(text.top[: count - text.prompt + 1], text.prompt - 1):
                ids[place, position] = torch.from_numpy(best[:kept])
                values[place, position] = torch.from_numpy(logits[:kept])
        vocabulary = int(self.target.model.config.get_text_config().vocab_size)
        opinions = TopOpinions(ids.to(device), values.to(device), vocabulary)
        return Corpus(tokens.to(device), own.to(device), states.to(device), opinions)


def _taps(file: DraftFile) -> tuple[int, ...]:
    features = file.header.features
    if features["mode"] != "all":
        raise NoFeatures(file.path, features["mode"])
    encoding_of(features, file.path)
    return tuple(int(tap["hidden_states"]) for tap in features["taps"])


def _requests(file: DraftFile) -> Iterator[_Text]:
    features = file.header.features
    encoding = encoding_of(features, file.path)
    width = len(features["taps"]) * int(features["hidden"])
    names = [name for name in _COLUMNS if name in file.schema.names]
    text: _Text | None = None
    for table in file.tables(names):
        for row in table.to_pylist():
            if row["kind"] == Kind.PREFILL:
                if text is not None:
                    yield text
                text = _Text(len(row["prompt_tokens"]), list(row["prompt_tokens"]))
            if text is not None and row["kind"] != Kind.DENSE:
                states = decoded(row["feature_values"], row["feature_scale"], width, encoding)
                _take(text, row, states)
    if text is not None:
        yield text


def _take(text: _Text, row: Row, states: NDArray[np.float32]) -> None:
    """Add a row: the states of the prompt's last token stand before those of the tokens that precede it."""
    if row["kind"] == Kind.PROMPT_FEATURES:
        text.states.insert(len(text.states) - 1, states)
        return
    text.states.append(states)
    path = row["accepted_nodes"]
    said = [*(row["node_token"][node] for node in path), row["bonus_token"]]
    text.tokens += said[: row["emitted"]]
    text.top += [_top(row, slot) for slot in (0, *(node + 1 for node in path))][: row["emitted"]]


def _top(row: Row, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    slots = len(row["node_token"]) + 1
    kept = len(row["slot_topk_token"]) // slots
    part = slice(slot * kept, (slot + 1) * kept)
    return np.array(row["slot_topk_token"][part]), np.array(row["slot_topk_logit"][part], dtype=np.float32)
