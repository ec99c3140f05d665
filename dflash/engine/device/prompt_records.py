"""Records of prompts in host memory: copied behind each forward that a prompt ends with, read later."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.engine.device.arrays import Layout, Records

_FIRST = 4


class PromptRecord(NamedTuple):
    """Where a forward's record arrives; `records` are its arrays `[1, ...]`, lent until it is given back."""

    flat: Tensor
    records: Records
    arrived: torch.cuda.Event | None

    def wait(self) -> Records:
        """The record, once it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.records


class PromptRecords:
    """As many records in host memory as there are forwards that nobody has read."""

    def __init__(self, record: Tensor, layout: Layout) -> None:
        self.record, self.layout = record, layout
        # pinned memory takes long to get
        self._free = [self._make() for _ in range(_FIRST)]

    def push(self) -> PromptRecord:
        """Queue the copy of the record that the work of this stream will leave."""
        found = self._free.pop() if self._free else self._make()
        found.flat.copy_(self.record, non_blocking=True)
        if found.arrived is not None:
            found.arrived.record()
        return found

    def give_back(self, record: PromptRecord) -> None:
        """Let a record be written over, read or not, by work behind that which it is of."""
        self._free.append(record)

    def _make(self) -> PromptRecord:
        cuda = self.record.is_cuda
        flat = torch.zeros(self.record.shape, dtype=self.record.dtype, pin_memory=cuda)
        return PromptRecord(flat, Records(flat.numpy(), self.layout), torch.cuda.Event() if cuda else None)
