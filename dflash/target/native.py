"""NativeTrunk: a target whose trees are scored by the native step, over the same cache as transformers'."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.attention_plan import Mode
from dflash.target.lane_prefill import LanePrefill, chunks
from dflash.target.llama_step import LlamaStep, StepOutput
from dflash.target.load import Target
from dflash.target.model import Rows, TrunkModel
from dflash.target.model_step import ModelStep
from dflash.target.native_layers import KeyValue, Way
from dflash.target.scratch import LaneRows, Scratch
from dflash.target.step_graphs import StepGraphs
from dflash.target.step_inputs import LaneRow, StepInputs
from dflash.target.support import self_test, tie_tolerance

WIDTHS = (1, 4, 8, 16, 24, 32, 48, MAX_NODES)


class NativeTrunk(TrunkModel):
    """`TrunkModel` on the native kernels.

    Trees of up to 64 rows a lane, the anchor's included, that hang on the trunk's end take the native step.
    Longer prompts, larger trees, and rows in the middle of a trunk go through transformers, on the same
    cache; the dense pass has lanes `beside` these, whose trunks end where it drafts. Rows are padded to a few
    widths; in `replay-exact` to one, so that a row's bits do not depend on the batch.

    Attributes:
        prefills: whether prompts take the native step too, whatever their length.
        step: what computes rows: this package's layers, or transformers' around the tree kernel.
        native: forwards that the native step computed, of `work.forwards`.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        lanes: int = 1,
        capacity: int = 1024,
        taps: Sequence[int] = (),
        way: Way | None = None,
        *,
        prefills: bool = False,
        step: LlamaStep | ModelStep | None = None,
    ) -> None:
        super().__init__(model, lanes, capacity, taps)
        self.prefills = prefills
        self.native = 0
        self.step = step or LlamaStep(name, model, taps, way=way)
        self.graphs = StepGraphs(self.step)
        self._prefill = LanePrefill(self.step)

    def beside(self, lanes: int, capacity: int) -> NativeTrunk:
        """A trunk on the same packed weights, with lanes and graphs of its own, that taps nothing."""
        step = copy.copy(self.step)
        step.taps = ()
        return NativeTrunk("", self.model, lanes, capacity, step=step)

    def append(self, lane: int, tokens: Sequence[int]) -> Rows:
        """Extend the trunk, see `TrunkModel.append`; natively if `prefills` is set."""
        needed = self.scratch[lane].length + len(tokens) + MAX_NODES
        if not tokens or not self.prefills or not self.pages(needed):
            return super().append(lane, tokens)
        length = self.scratch[lane].length
        found = self._prefill.run(self.stores(), lane, length, tokens)
        self.scratch[lane] = Scratch(length + len(tokens))
        forwards = len(list(chunks(len(tokens))))
        self.work.forwards += forwards
        self.work.rows += len(tokens)
        self.native += forwards
        return Rows(found.logits.clone(), found.taps)

    def pages(self, rows: int) -> bool:
        """Make room for so many rows; whether each lane's room is a page of the kernels then."""
        if rows > self.cache.capacity:
            self.cache.reserve(1 << (rows - 1).bit_length())
        return LanePrefill.takes(self.cache.capacity)

    @torch.inference_mode()
    def _call(
        self,
        batch: Sequence[LaneRows],
        firsts: Sequence[int],
        lanes: Tensor,
        width: int,
        extent: int,
        last_only: bool,
    ) -> list[Rows]:
        if not all(self._fits(item.lane) for item in batch):
            return super()._call(batch, firsts, lanes, width, extent, last_only)
        self.native += 1
        tail = max(len(self.scratch[item.lane].ancestors) for item in batch)
        padded, seen = self.padded(width), self.padded(tail)
        longest = max(scratch.length for scratch in self.scratch)
        self.cache.fit(longest + seen)
        output = self.graphs.run(
            self.stores(), padded, seen, lambda inputs: self._fill(inputs, batch, firsts)
        )
        return [self._lane_rows(output, item, padded, last_only) for item in batch]

    def padded(self, rows: int) -> int:
        """The width of steps for so many rows a lane."""
        return padded_width(rows, self.step.way.mode)

    def _fits(self, lane: int) -> bool:
        scratch = self.scratch[lane]
        here = all(base == scratch.length for base in scratch.bases)
        return here and len(scratch.ancestors) <= MAX_NODES

    def _fill(self, inputs: StepInputs, batch: Sequence[LaneRows], firsts: Sequence[int]) -> None:
        for item, first in zip(batch, firsts, strict=True):
            scratch = self.scratch[item.lane]
            rows = [_row(scratch, first + index, token) for index, token in enumerate(item.tokens)]
            inputs.set_lane(item.lane, scratch.length, rows)

    def _lane_rows(self, output: StepOutput, item: LaneRows, width: int, last_only: bool) -> Rows:
        start, count = item.lane * width, len(item.tokens)
        logits = output.logits[start : start + count]
        taps = None if output.taps is None else output.taps[start : start + count].clone()
        return Rows(logits[-1:].clone() if last_only else logits.clone(), taps)

    def stores(self) -> list[KeyValue]:
        """Keys and values of all layers, made before the first forward where need be."""
        sizes, like = self.step.sizes, self.step.embedding
        shape = (self.cache.lanes, sizes.kv_heads, self.cache.capacity, sizes.head)
        for layer in range(len(self.step.layers)):
            for store in (self.cache.keys, self.cache.values):
                if layer not in store:
                    store[layer] = like.new_zeros(shape)
        layers = range(len(self.step.layers))
        return [KeyValue(self.cache.keys[layer], self.cache.values[layer]) for layer in layers]


def padded_width(rows: int, mode: Mode) -> int:
    """The width of steps for so many rows a lane: one for all in `replay-exact`."""
    return WIDTHS[-1] if mode == "replay-exact" else next(width for width in WIDTHS if width >= rows)


def proven(target: Target, way: Way | None = None, step: ModelStep | None = None) -> Target:
    """The target, once a step has passed the start-up self-test, with the tolerance that it needs.

    Args:
        step: the one to prove, if not the native one.

    Raises:
        NativeUnsupported: the model does not run on the native kernels.
        SelfTestFailed: it does, but trees come out wrong.
    """
    make = partial(NativeTrunk, target.name, way=way, step=step, prefills=step is not None)
    measured = self_test(target.name, target.model, make)
    tolerance = max(target.tie_tolerance, tie_tolerance(target.model, measured))
    return replace(target, tie_tolerance=tolerance)


def _row(scratch: Scratch, node: int, token: int) -> LaneRow:
    above = scratch.ancestors[node]
    word = sum(1 << ancestor for ancestor in above)
    return LaneRow(token, scratch.length + len(above) - 1, scratch.length + node, word)
