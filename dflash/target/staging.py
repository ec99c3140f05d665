"""Host memory on its way to a device: blocks that are written again once their copies have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Form = TypeVar("Form")
_FIRST = 4


class Block(NamedTuple, Generic[Form]):
    """Words in host memory.

    Attributes:
        flat: int32, pinned where the device is a GPU.
        form: the same, as those who write them know them.
        copied: when they may be written again; None where copies are waited for.
    """

    flat: Tensor
    form: Form
    copied: torch.cuda.Event | None


class Staging(Generic[Form]):
    """Blocks of one size; as many as are on their way at once, so that nobody waits for a copy."""

    def __init__(self, words: int, form: Callable[[Tensor], Form], device: torch.device) -> None:
        """Have a few: pinned memory takes long to get."""
        self._words, self._form, self._device = words, form, device
        self._blocks: deque[Block[Form]] = deque(self._make() for _ in range(_FIRST))

    def take(self) -> Block[Form]:
        """A block that nobody reads any more, with what was in it."""
        if self._blocks and _is_free(self._blocks[0]):
            return self._blocks.popleft()
        return self._make()

    def _make(self) -> Block[Form]:
        on_gpu = self._device.type == "cuda"
        flat = torch.zeros(self._words, dtype=torch.int32, pin_memory=on_gpu)
        return Block(flat, self._form(flat), torch.cuda.Event() if on_gpu else None)

    def send(self, block: Block[Form], goal: Tensor) -> None:
        """Queue the copy of a block's first words to int32 `[up to all]` on the device; gives it back."""
        goal.copy_(block.flat[: len(goal)], non_blocking=True)
        if block.copied is not None:
            block.copied.record()
        self._blocks.append(block)


def _is_free(block: Block[Form]) -> bool:
    return block.copied is None or block.copied.query()
