"""Made-up rows for a recorder: chains of device rounds, and the first row of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.bench.replay_files import VOCAB
from dflash.draftfile.feature_values import FeatureEncoding
from dflash.engine.device.arrays import Packed, Records
from dflash.engine.device.prompt_rows import PromptRows, Prompts
from dflash.engine.device.record import RecordSizes, layout_of, record_fields, record_words
from dflash.engine.device.rows import Chain, RoundNumbers, RoundRows
from dflash.engine.features import FINGERPRINT, FeatureMode, Features, Fingerprint, PromptFeatures
from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.unmade import Unmade
from dflash.engine.request import Request
from dflash.kernels.feature_codes import encode_features
from dflash.kernels.round_lanes import RoundTree

TOP, TAPS = 16, 3 * 576
# rows that lie far enough from each other in a file that compression does not find them again
POOL = 8192
PROMPTS, PROMPT_TOKENS = 64, 64
# how likely a node is accepted after all those before it: 2.1 tokens a round of seven
AGREE = 0.53
# how far scales of channels lie apart, so that codes compress about as those of a model do
SPREAD = 0.7


class Case(NamedTuple):
    """What is recorded.

    Attributes:
        chain: rounds that are handed over at once.
        length: of drafts; 0 is plain decoding.
        rounds: of a request.
        features: how whole hidden states are kept; None if they are not.
        prompt_tokens: of a request.
    """

    lanes: int
    chain: int
    length: int
    requests: int
    rounds: int = 64
    features: FeatureEncoding | None = None
    prompt_tokens: int = PROMPT_TOKENS

    @property
    def chains(self) -> int:
        """How many are handed over, or a few more."""
        return (self.requests + 2 * self.lanes) * self.rounds // (self.lanes * self.chain)


class Rounds:
    """Chains of made-up rounds of a tree."""

    def __init__(self, case: Case) -> None:
        self.case = case
        tree = RoundTree.make(case.length, 1, case.lanes, "cpu")
        sizes = RecordSizes(case.lanes, TOP, TOP if case.length else 2, TAPS, case.features is not None)
        fields = record_fields(sizes, tree)
        self.layout = layout_of(fields)
        parents = tree.parents[0].tolist() if tree.nodes else []
        self.maker = RoundRows(self.layout, ColumnMaker(parents, tree.expanded, 1, TOP), case.features)
        rng, shape = np.random.default_rng(1), (case.chain, record_words(fields))
        self.channels = np.exp(SPREAD * rng.normal(size=TAPS)).astype(np.float32)
        size = max(1, min(POOL // (case.lanes * case.chain), case.chains))
        self.pool = [self._filled(rng, np.zeros(shape, np.int32)) for _ in range(size)]
        self.packed = [self._packed(rng, flat) for flat in self.pool]
        kept, tokens = case.features, case.prompt_tokens
        count = min(PROMPTS, case.requests + case.lanes) if kept else 0
        self.prompts = [packed_states(rng, tokens, kept, self.channels) for _ in range(count) if kept]
        self.answer = answer_record(rng)
        self.answers = PromptRows(self.answer, TOP)
        prints = Fingerprint(tuple(range(3)), TAPS // 3, torch.device("cpu"))
        self.features = Features(FeatureMode.ALL, prints, kept) if kept else None

    def answered(self, lane: Lane) -> Unmade:
        """The row of a prompt of which no hidden states are kept, as an engine hands it over."""
        part = Prompts.of(self.answer, [lane], [Emission(1, Truncation.NONE)])
        return Unmade.now(np.array([lane.index]), self.answers, part, part.size)

    def _filled(self, rng: np.random.Generator, flat: Any) -> Any:
        found = Records(flat, self.layout)
        for name, values in found.items():
            if name == "times":
                values[:] = np.arange(1, 5) * 200_000 + rng.integers(0, 1000, values.shape)
            elif values.dtype.kind == "f":
                values[:] = np.abs(rng.normal(size=values.shape)) * 5
            else:
                values[:] = rng.integers(0, VOCAB, values.shape)
        for name in ("slot_logits", "draft_logits"):
            found[name][:] = -np.sort(-found[name], -1)
        found["confidence"][:] = found["lse_p"][:] = np.nan
        found["lse"][:] += 40
        agreed = rng.geometric(1 - AGREE, found["count"].shape) - 1
        found["count"][:] = np.minimum(agreed, self.case.length)
        found["path"][:] = np.arange(self.case.length)
        found["live"][:] = 1
        return flat

    def _packed(self, rng: np.random.Generator, flat: Any) -> Packed | None:
        """Hidden states of what a chain commits, as graphics memory would hold them."""
        encoding = self.case.features
        if encoding is None:
            return None
        return packed_states(rng, int(Records(flat, self.layout).committed.sum()), encoding, self.channels)

    def prompt(self, request: Request) -> PromptFeatures:
        """What is kept of a prompt, as an engine has it once its hidden states have arrived."""
        if self.features is None:
            return PromptFeatures({}, iter(()))
        values, scales, _ = self.prompts[request.order % len(self.prompts)]
        lines: list[NDArray[Any]] = [np.zeros((len(values), FINGERPRINT), np.float32), values]
        lines += [] if scales is None else [scales]
        return self.features.prompt_of(request.prompt_tokens, lines)

    def chain(self, number: int, begun: Sequence[int], last: Sequence[int]) -> Chain:
        """The chain of this number, of lanes whose requests begin and end with these chains."""
        lanes, rounds = self.case.lanes, self.case.chain
        record, lane = (each.reshape(-1) for each in np.mgrid[:rounds, :lanes])
        flat = self.pool[number % len(self.pool)].copy()
        counts = Records(flat, self.layout)["count"][record, lane]
        first = (number - np.array(begun)[lane]) * rounds
        ends = (number == np.array(last)[lane]) & (record == rounds - 1)
        shape = np.full((2, len(record)), [[self.case.length], [min(1, self.case.length)]])
        numbers = RoundNumbers(
            record, lane, first + record, counts + 1, np.where(ends, 2, 0), np.full(len(record), lanes),
            number * rounds + record, *shape,
        )  # fmt: skip
        packed = self.packed[number % len(self.pool)] or ()
        return Chain(flat, np.array(numbers), np.zeros((4, len(record))), None, *packed)


def answer_record(rng: np.random.Generator) -> Records:
    """What a forward leaves that eight prompts end with."""
    fields = record_fields(RecordSizes(8, TOP, 2, TAPS, features=False), RoundTree.make(0, 1, 8, "cpu"))
    found = Records(np.zeros((1, record_words(fields)), np.int32), layout_of(fields))
    for name in ("slot_ids", "choice", "slot_logits", "choice_logit", "lse", "fingerprint"):
        values = found[name]
        whole = values.dtype.kind == "i"
        values[:] = rng.integers(0, VOCAB, values.shape) if whole else rng.normal(size=values.shape)
    found["slot_logits"][:] = -np.sort(-found["slot_logits"], -1)
    return found


def packed_states(
    rng: np.random.Generator, tokens: int, encoding: FeatureEncoding, channels: NDArray[np.float32]
) -> Packed:
    """Made-up hidden states `[tokens, channels]`, as large as `channels` says."""
    states = rng.standard_normal((tokens, len(channels)), np.float32) * channels
    values, scales = encode_features(torch.from_numpy(states), encoding)
    # an engine sends them line behind line
    lines = values.view(torch.uint8).contiguous().numpy()
    return Packed(lines, None if scales is None else scales.numpy(), lent=True)


def prefill_row(request: Request) -> Mapping[str, Any]:
    """A first row as the judge makes it."""
    one, none = np.array([7.0], np.float32), np.array([np.nan], np.float32)
    floats, ids = np.empty(0, np.float32), np.empty(0, np.int32)
    names = ("rank", "logq", "draft_gap", "margin", "confidence", "logp", "target_logit", "mass_above")
    row: dict[str, Any] = {f"node_{name}": floats for name in (*names, "residual_mass")}
    row |= dict.fromkeys(("slot_choice_logit", "slot_gap", "slot_lse", "slot_entropy"), one)
    row |= dict.fromkeys(("draft_lse", "slot_cut_gap", "slot_lse_p"), none)
    row |= dict.fromkeys(("node_token", "draft_topk_token", "node_residual_token"), ids)
    row |= dict.fromkeys(("draft_topk_logit", "draft_topk_target_logit"), floats)
    tokens = request.prompt_tokens
    return row | {
        "kind": 2, "round": -1, "accepted_nodes": [], "bonus_token": 7, "emitted": 1, "truncated_by": "none",
        "draft_length": 0, "branches": 0, "context_length": len(tokens), "verify_us": 1.0, "round_us": 1.0,
        "anchor_position": len(tokens) - 1, "anchor_token": tokens[-1], "batch_size": 1,
        "node_parent": np.empty(0, np.int16), "node_source": np.empty(0, np.int8),
        "slot_argmax": np.array([7], np.int32), "slot_choice": np.array([7], np.int32),
        "slot_cutoff": np.array([-np.inf], np.float32), "slot_topk_token": np.arange(TOP, dtype=np.int32),
        "slot_topk_logit": np.arange(TOP, 0, -1, dtype=np.float32),
        "feature_fingerprint": np.zeros(16, np.float32), "prompt_tokens": tokens,
        "prompt_text": request.prompt_text, "request_info": request.info_json(),
    }  # fmt: skip
