"""A device round's record: one flat buffer that holds all that the lanes' rows are made of."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.engine.device.arrays import Layout, Part, Records
from dflash.engine.features import FINGERPRINT
from dflash.kernels.round_lanes import RoundTree

# that may be queued before the first of them is read
CHAINS = 4
_ALIGN = 4
_NUMPY = {torch.int32: "i4", torch.int64: "i8", torch.float32: "f4"}


class Field(NamedTuple):
    """One tensor of a record."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        """32-bit words, rounded up so that the next field starts on 16 bytes."""
        words = -(-prod(self.shape) * self.dtype.itemsize // 4)
        return -(-words // _ALIGN) * _ALIGN


class RecordSizes(NamedTuple):
    """What a record's size depends on besides its tree."""

    lanes: int
    top: int
    """Target logits a slot."""
    draft_top: int
    """Draft logits an expanded slot."""
    taps: int
    """Numbers of tapped hidden states a token; 0 for no fingerprints."""
    features: bool
    """Whether the hidden states themselves are kept, beside the record."""


def record_fields(sizes: RecordSizes, tree: RoundTree) -> dict[str, Field]:
    """Fields of a record, in order; by lane but for `OF_ROUNDS`.

    `packed` is how many rows of features were packed before the round, and after it.
    """
    nodes, slots, kept = tree.nodes, tree.nodes + 1, tree.length + 1
    seen = (tree.expanded, sizes.draft_top)
    tokens = {"path": (nodes,), "node_token": (nodes,), "node_rank": (nodes,), "draft_ids": seen}
    integers = dict.fromkeys(("live", "length", "anchor", "count", "bonus", "emitted", "reason"), ())
    integers |= tokens | {"slot_ids": (slots, sizes.top), "choice": (slots,)}
    node_floats = ("log_q", "draft_gap", "margin", "confidence", "node_logit", "node_mass")
    floats = dict.fromkeys(node_floats, (nodes,))
    floats |= dict.fromkeys(("choice_logit", "gap", "lse", "lse_p", "entropy"), (slots,))
    floats |= {"draft_lse": seen[:1], "draft_logits": seen, "draft_target": seen}
    floats |= {"slot_logits": (slots, sizes.top)}
    if sizes.taps:
        floats["fingerprint"] = (kept, FINGERPRINT)
    fields = {"times": Field(torch.int64, (4,))}
    if sizes.features:
        fields["packed"] = Field(torch.int64, (2,))
    for dtype, shapes in ((torch.int32, integers), (torch.float32, floats)):
        fields |= {name: Field(dtype, (sizes.lanes, *shape)) for name, shape in shapes.items()}
    return fields


def record_words(fields: Mapping[str, Field]) -> int:
    """Words of a record."""
    return sum(field.words for field in fields.values())


def tensors_of(flat: Tensor, fields: Mapping[str, Field]) -> dict[str, Tensor]:
    """The fields of a record `[words]` int32, as views."""
    views, start = {}, 0
    for name, (dtype, shape) in fields.items():
        end = start + -(-prod(shape) * dtype.itemsize // 4)
        views[name] = flat[start:end].view(dtype)[: prod(shape)].view(shape)
        start += fields[name].words
    return views


def layout_of(fields: Mapping[str, Field]) -> Layout:
    """Where the same fields lie in host memory."""
    layout, start = {}, 0
    for name, field in fields.items():
        layout[name] = Part(_NUMPY[field.dtype], field.shape, start)
        start += field.words
    return layout


class _Slot(NamedTuple):
    """Where records wait for the host."""

    staged: Tensor
    pinned: Tensor
    ready: torch.cuda.Event


class RecordRing:
    """Takes a chain's records off the device while later rounds run; the host reads them when it likes.

    Copies run on a stream of their own, into pinned memory. Records must be read before `slots` more are
    pushed.
    """

    def __init__(self, record: Tensor, fields: Mapping[str, Field], slots: int = CHAINS) -> None:
        self.record = record
        self.layout = layout_of(fields)
        self._pushed = 0
        self._places: list[_Slot] = []
        self._waiting: dict[int, Tensor] = {}
        self.slots = slots
        if record.is_cuda:
            self._stream = torch.cuda.Stream(record.device)
            self._places = [self._slot() for _ in range(slots)]

    def _slot(self) -> _Slot:
        pinned = torch.empty(self.record.shape, dtype=self.record.dtype, pin_memory=True)
        return _Slot(torch.empty_like(self.record), pinned, torch.cuda.Event())

    def push(self) -> int:
        """Queue the copy of the records that the work queued so far will leave; returns their ticket."""
        ticket, self._pushed = self._pushed, self._pushed + 1
        if not self._places:
            self._waiting[ticket] = self.record.clone()
            return ticket
        slot = self._places[ticket % self.slots]
        current = torch.cuda.current_stream(self.record.device)
        # the copy before last out of this slot has long ended
        current.wait_event(slot.ready)
        slot.staged.copy_(self.record)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            slot.pinned.copy_(slot.staged, non_blocking=True)
            slot.ready.record(self._stream)
        return ticket

    def read(self, ticket: int) -> Records:
        """Wait for records; the arrays are the caller's."""
        if self._places:
            slot = self._places[ticket % self.slots]
            slot.ready.synchronize()
            return Records(slot.pinned.numpy().copy(), self.layout)
        return Records(self._waiting.pop(ticket).numpy(), self.layout)

    def forget(self, ticket: int) -> None:
        """Leave records unread."""
        self._waiting.pop(ticket, None)
