"""TrunkModel: a transformers model that computes rows of many lanes over shared trunks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash.target.cache import TrunkCache
from dflash.target.scratch import LaneRows, Scratch

PREFILL_ROWS = 512


@dataclass(frozen=True, slots=True)
class Rows:
    """What one forward said about one lane: `logits` [w, vocabulary], `taps` [w, taps x hidden] or None."""

    logits: Tensor
    taps: Tensor | None


@dataclass(slots=True)
class Work:
    """Counts of what a model was asked to compute."""

    forwards: int = 0
    rows: int = 0


def cache_keyword(model: torch.nn.Module) -> str:
    """The name under which this transformers version takes a cache."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


@contextmanager
def attending(model: Any, attention: str) -> Iterator[None]:
    """Let a model's layers use an attention that is registered with transformers under this name."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = attention
    try:
        yield
    finally:
        config._attn_implementation = before


class TrunkModel:
    """The one interface to a language model: append to a trunk, score a tree on it, commit a path.

    A lane's trunk is computed once. Nodes live in scratch rows behind it, see the trunk and their own
    ancestors only, and become trunk by `commit`, which copies the accepted rows and nothing else.
    """

    def __init__(self, model: Any, lanes: int = 1, capacity: int = 1024, taps: Sequence[int] = ()) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.taps = tuple(taps)
        self.work = Work()
        self.cache = TrunkCache(lanes, capacity)
        self.scratch = [Scratch() for _ in range(lanes)]
        self._keyword = cache_keyword(model)
        types = getattr(self.config, "layer_types", None)
        self._layer_types = sorted(set(types)) if types else None

    @property
    def vocabulary(self) -> int:
        """Size of the output head, padding included."""
        return int(self.config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def length(self, lane: int) -> int:
        """Tokens of the trunk whose keys and values are stored."""
        return self.scratch[lane].length

    def nodes(self, lane: int) -> int:
        """Nodes in the lane's scratch rows."""
        return len(self.scratch[lane].ancestors)

    def reset(self, lane: int) -> None:
        """Forget a lane's trunk and nodes."""
        self.scratch[lane] = Scratch()

    def drop_nodes(self, lane: int) -> None:
        """Forget a lane's nodes, keep its trunk."""
        self.scratch[lane].clear()

    def append(self, lane: int, tokens: Sequence[int]) -> Rows:
        """Extend the trunk by `tokens` [m]; logits [1, vocabulary] of the last one, taps [m, taps x hidden]
        of all.
        """
        if not tokens:
            raise ValueError("append needs at least one token")
        taps: list[Tensor] = []
        for start in range(0, len(tokens), PREFILL_ROWS):
            chunk = tokens[start : start + PREFILL_ROWS]
            self.drop_nodes(lane)
            rows = self._forward([LaneRows(lane, chunk, range(-1, len(chunk) - 1))], last_only=True)[0]
            self.scratch[lane] = Scratch(self.scratch[lane].length + len(chunk))
            if rows.taps is not None:
                taps.append(rows.taps)
        return Rows(rows.logits, torch.cat(taps) if taps else None)

    def score(self, batch: Sequence[LaneRows]) -> list[Rows]:
        """Add nodes to the scratch rows of each lane and score them all in one forward."""
        return self._forward(batch, last_only=False)

    def truncate(self, lane: int, length: int) -> None:
        """Forget the trunk from token `length` on, and all nodes."""
        self.scratch[lane] = Scratch(min(length, self.scratch[lane].length))

    def commit(self, lane: int, path: Sequence[int]) -> None:
        """Make the scratch rows `path` (a root-to-node path, in order) part of the trunk; drop the other
        nodes.
        """
        length = self.scratch[lane].length
        source = torch.tensor([length + node for node in path], dtype=torch.long, device=self.device)
        if list(path) != list(range(len(path))):
            self.cache.commit(lane, source, length)
        self.scratch[lane] = Scratch(length + len(path))

    def _forward(self, batch: Sequence[LaneRows], last_only: bool) -> list[Rows]:
        width = max(len(rows.tokens) for rows in batch)
        firsts = [self.scratch[rows.lane].add(rows) for rows in batch]
        starts = [self.scratch[rows.lane].length + first for rows, first in zip(batch, firsts, strict=True)]
        extent = max(starts) + width
        self.cache.fit(extent)
        lanes = torch.tensor([rows.lane for rows in batch], device=self.device)
        order = torch.argsort(lanes) if len(batch) == self.cache.lanes else torch.arange(len(batch))
        batch = [batch[i] for i in order.tolist()]
        firsts = [firsts[i] for i in order.tolist()]
        output = self._call(batch, firsts, lanes[order], width, extent, last_only)
        results: list[Rows] = [output[0]] * len(batch)
        for rows, index in zip(output, order.tolist(), strict=True):
            results[index] = rows
        self.work.forwards += 1
        self.work.rows += sum(len(rows.tokens) for rows in batch)
        return results

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
        ids = np.zeros((len(batch), width), dtype=np.int64)
        positions = np.zeros_like(ids)
        rows = np.zeros_like(ids)
        for index, (item, first) in enumerate(zip(batch, firsts, strict=True)):
            scratch = self.scratch[item.lane]
            ids[index, : len(item.tokens)] = item.tokens
            positions[index] = scratch.positions(first, width)
            rows[index] = scratch.length + first + np.arange(width)
        self.cache.stage(lanes, torch.from_numpy(rows).to(self.device), extent)
        output = self.model(
            input_ids=torch.from_numpy(ids).to(self.device),
            position_ids=torch.from_numpy(positions).to(self.device),
            attention_mask=self._masks(batch, firsts, width, extent),
            use_cache=True,
            output_hidden_states=bool(self.taps),
            logits_to_keep=1 if last_only else 0,
            **{self._keyword: self.cache},
        )
        return [self._rows(output, index, len(item.tokens), last_only) for index, item in enumerate(batch)]

    def _rows(self, output: Any, index: int, count: int, last_only: bool) -> Rows:
        logits = output.logits[index] if last_only else output.logits[index, :count]
        if not self.taps:
            return Rows(logits, None)
        states = [output.hidden_states[tap][index, :count] for tap in self.taps]
        return Rows(logits, torch.cat(states, dim=-1))

    def _masks(
        self, batch: Sequence[LaneRows], firsts: Sequence[int], width: int, extent: int
    ) -> Tensor | dict[str, Tensor]:
        def mask(window: int | None) -> Tensor:
            visible = [
                self.scratch[item.lane].visible(first, width, extent, window)
                for item, first in zip(batch, firsts, strict=True)
            ]
            return torch.from_numpy(np.stack(visible)[:, None]).to(self.device)

        window = getattr(self.config, "sliding_window", None)
        if self._layer_types is None:
            return mask(window)
        return {kind: mask(window if kind == "sliding_attention" else None) for kind in self._layer_types}
