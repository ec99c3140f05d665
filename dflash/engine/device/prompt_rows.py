"""The rows of prompts from their records: what the target says behind last tokens, and nothing of nodes.

This needs no torch, so that columns may be made elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.rows import Coded, Column, Ragged
from dflash.draftfile.summary import Kind
from dflash.engine.device.arrays import ENDED, STARTED, Records
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.device.rows import REASONS
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.unmade import Row

if TYPE_CHECKING:
    from dflash.engine.lane import Emission, Lane

Ints = NDArray[np.int64]


class PromptNumbers(NamedTuple):
    """What the host alone knows of prompts, each `[rows]` int64.

    Attributes:
        record, place: Where a prompt's part of the records is.
        size: Its tokens.
        reason: Place among `REASONS`.
    """

    record: Ints
    place: Ints
    size: Ints
    emitted: Ints
    reason: Ints


class Prompts(NamedTuple):
    """Prompts whose first tokens were emitted, as they are handed over: a record, and what the host knows.

    Attributes:
        flat: `[records, words]` int32.
        numbers: `PromptNumbers` as `[fields, rows]`.
        tokens: Of all prompts, one behind the other.
        texts: Of each; `infos` likewise the `request_info`.
    """

    flat: NDArray[np.int32]
    numbers: Ints
    tokens: NDArray[np.int32]
    texts: Sequence[str]
    infos: Sequence[str]

    @classmethod
    def of(cls, records: Records, lanes: Sequence[Lane], emissions: Sequence[Emission]) -> Prompts:
        """The first prompts of a forward, as many as have emitted a token; the record may be lent."""
        asked = [lane.request for lane in lanes[: len(emissions)]]
        numbers = [
            (0, place, len(request.prompt_tokens), emission.emitted, REASONS.index(emission.truncated_by))
            for place, (request, emission) in enumerate(zip(asked, emissions, strict=True))
        ]
        tokens = [token for request in asked for token in request.prompt_tokens]
        texts = [request.prompt_text for request in asked]
        infos = [request.info_json() for request in asked]
        found = np.array(numbers, np.int64).T
        return cls(records.flat.copy(), found, np.array(tokens, np.int32), texts, infos)

    @property
    def size(self) -> int:
        """Bytes of its arrays and texts."""
        texts = sum(map(len, (*self.texts, *self.infos)))
        return self.flat.nbytes + self.numbers.nbytes + self.tokens.nbytes + texts


class PromptRows:
    """Makes rows of prompts: one by one, with few operations on arrays, or columns of many.

    Args:
        like: any records of such prompts.
        store_topk: logits to keep.
    """

    def __init__(self, like: Records, store_topk: int) -> None:
        self.store_topk, self.layout = store_topk, like.layout
        of_rows = {name: values[0, :1] for name, values in like.items() if name != "times"}
        columns = ColumnMaker([], 0, 1, store_topk).columns(of_rows, Laws.of([LaneLaw(0.0, None)]))
        # a tree without nodes has the same columns always
        self._same = {
            name: column.values if isinstance(column, Ragged) else np.asarray(column)[0].copy()
            for name, column in columns.items()
        }

    def columns(self, parts: Sequence[Prompts], order: Ints | None = None) -> dict[str, Column]:
        """Columns of prompts, `order` of those of all parts, one behind the other."""
        records, numbers = self._joined(parts)
        every = range(numbers.record.size) if order is None else order.tolist()
        tokens = np.split(np.concatenate([part.tokens for part in parts]), numbers.size.cumsum()[:-1])
        texts = [text for part in parts for text in part.texts]
        infos = [info for part in parts for info in part.infos]
        if order is not None:
            numbers = PromptNumbers(*(each[order] for each in numbers))
        rows, size = numbers.record.size, numbers.size
        of_rows = {
            name: values[numbers.record, numbers.place] for name, values in records.items() if name != "times"
        }
        maker = ColumnMaker([], 0, 1, self.store_topk)
        columns = maker.columns(of_rows, Laws(*np.zeros((len(Laws._fields), rows))))
        if "fingerprint" in of_rows:
            columns["feature_fingerprint"] = of_rows["fingerprint"].reshape(rows, -1)
        spent = _spent(records["times"])[numbers.record]
        none = np.zeros(rows, np.int64)
        return columns | {
            "kind": np.full(rows, Kind.PREFILL, np.int8),
            "round": none - 1,
            "accepted_nodes": Ragged(np.zeros(0, np.int16), none),
            "bonus_token": of_rows["choice"][:, 0],
            "emitted": numbers.emitted,
            "truncated_by": Coded(numbers.reason, REASONS),
            "draft_length": none,
            "branches": none,
            "context_length": size,
            "batch_size": none + 1,
            "anchor_position": size - 1,
            "anchor_token": np.array([tokens[place][-1] for place in every], np.int32),
            "verify_us": spent,
            "round_us": spent,
            "prompt_tokens": Ragged(np.concatenate([tokens[place] for place in every]), size),
            "prompt_text": [texts[place] for place in every],
            "request_info": [infos[place] for place in every],
        }

    def counted(self, part: Prompts) -> dict[str, Any]:
        """What is counted of prompts."""
        numbers = PromptNumbers(*part.numbers)
        kind = np.full(numbers.size.size, Kind.PREFILL, np.int8)
        return {"kind": kind, "emitted": numbers.emitted, "prompt_tokens": numbers.size}

    def _joined(self, parts: Sequence[Prompts]) -> tuple[Records, PromptNumbers]:
        numbers = PromptNumbers(*np.concatenate([part.numbers for part in parts], axis=1))
        starts = np.cumsum([0, *(len(part.flat) for part in parts[:-1])])
        shift = np.repeat(starts, [part.numbers.shape[1] for part in parts])
        flat = np.concatenate([part.flat for part in parts])
        return Records(flat, self.layout), numbers._replace(record=numbers.record + shift)

    def row(self, records: Records, place: int, lane: Lane) -> Row:
        """The columns of a prompt's last token but for what is emitted; the arrays are the caller's.

        Args:
            records: of a forward.
            place: of the prompt in it.
            lane: that it fills.
        """
        tokens, top = lane.request.prompt_tokens, self.store_topk

        def of(name: str) -> Any:
            return records[name][0, place].copy()

        ids, gap, spent = of("slot_ids")[0], of("gap"), float(_spent(records["times"])[0])
        row = self._same | {
            "slot_argmax": ids[:1],
            "slot_choice": of("choice"),
            "slot_choice_logit": of("choice_logit"),
            "slot_gap": gap if np.isfinite(gap[0]) else np.full_like(gap, np.nan),
            "slot_lse": of("lse"),
            "slot_lse_p": of("lse_p"),
            "slot_entropy": of("entropy"),
            "slot_topk_token": ids[:top],
            "slot_topk_logit": of("slot_logits")[0, :top],
            "anchor_position": len(tokens) - 1,
            "anchor_token": tokens[-1],
            "verify_us": spent,
            "round_us": spent,
        }
        if "fingerprint" in records:
            row["feature_fingerprint"] = of("fingerprint").reshape(-1)
        return row


def _spent(times: Ints) -> NDArray[np.float64]:
    """Microseconds of forwards; NaN where the clock was not read."""
    started, ended = times[:, STARTED], times[:, ENDED]
    return np.where(started > 0, (ended - started) / 1e3, np.nan)
