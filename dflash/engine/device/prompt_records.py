"""Records of prompts in host memory: copied behind each forward that a prompt ends with, read later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.engine.device.arrays import Layout, Records

_FIRST = 4


class PromptRecord(NamedTuple):
    """Where a forward's record arrives.

    Attributes:
        records: its arrays `[1, ...]`, lent until it is given back.
        begins: int32 `[2, prompts]` on the device: whether each prompt's request goes on behind its first
            token, and that token.
        arrived: when all of it is there; None where nothing is waited for, and so is `taken`.
        taken: when rounds have read `begins`.
    """

    flat: Tensor
    records: Records
    begins: Tensor
    arrived: torch.cuda.Event | None
    taken: torch.cuda.Event | None

    def wait(self) -> Records:
        """The record, once it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.records

    @contextmanager
    def taking(self) -> Iterator[Tensor]:
        """Let the current stream read `begins` in work that is queued meanwhile, once it is there."""
        if self.arrived is not None:
            torch.cuda.current_stream(self.begins.device).wait_event(self.arrived)
        yield self.begins
        if self.taken is not None:
            self.taken.record()


class PromptRecords:
    """As many records in host memory as there are forwards that nobody has read."""

    def __init__(self, record: Tensor, begins: Tensor, layout: Layout) -> None:
        self.record, self.begins, self.layout = record, begins, layout
        # pinned memory takes long to get
        self._free = deque(self._make() for _ in range(_FIRST))

    def push(self) -> PromptRecord:
        """Queue the copy of the record that the work of this stream will leave."""
        found = self._free.popleft() if self._free else self._make()
        if found.taken is not None:
            torch.cuda.current_stream(self.record.device).wait_event(found.taken)
        found.begins.copy_(self.begins)
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
        arrived, taken = (torch.cuda.Event() if cuda else None for _ in range(2))
        records, begins = Records(flat.numpy(), self.layout), torch.zeros_like(self.begins)
        return PromptRecord(flat, records, begins, arrived, taken)
