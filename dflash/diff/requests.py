"""Requests that both files have, by prompt, and what became of their rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dflash.diff.changes import Elements, Where
from dflash.diff.flat import Block, Values, objects
from dflash.diff.keys import PromptKey
from dflash.diff.ledger import Ledger
from dflash.diff.matching import equal_lists
from dflash.diff.pairing import RowCount, RowPairs, count_rows
from dflash.diff.stream import Leftovers
from dflash.diff.tolerance import Tolerance
from dflash.diff.trunk import Parting

PREFILL_COLUMNS = ("request_id", "prompt_text", "prompt_tokens", "request_info")


@dataclass(slots=True)
class Requests:
    """Counts over requests and over the live rounds and dense rows of the aligned ones."""

    total_a: int
    total_b: int
    by: PromptKey
    aligned: int = 0
    renamed: int = 0
    rows_a: RowCount = field(default_factory=RowCount)
    rows_b: RowCount = field(default_factory=RowCount)
    left: Leftovers = field(default_factory=Leftovers)

    def add(self, a: Block, b: Block, ledger: Ledger) -> None:
        """Compare what stands on the prefill rows."""
        self.aligned += len(a.starts)
        names = [block.ids()[block.starts] for block in (a, b)]
        self.renamed += int((names[0] != names[1]).sum())

        def locate(request: int) -> Where:
            anchor = int(a.scalar("anchor_position")[a.starts[request]])
            return Where(str(names[0][request]), str(names[1][request]), "prefill", -1, anchor)

        everyone = np.arange(len(a.starts))
        for name in PREFILL_COLUMNS:
            change = ledger.get(name)
            if change is not None:
                left, right = (_values(block, name) for block in (a, b))
                if name == "prompt_tokens":
                    same = equal_lists(a.flat(name), a.starts, b.flat(name), b.starts)
                    change.compared += int(same.sum())
                    some = np.flatnonzero(~same)
                    left, right = (_lists(block, name, some) for block in (a, b))
                    change.add(Elements(some, left, right), Tolerance(0.0, 0.0), locate)
                else:
                    change.add(Elements(everyone, left, right), Tolerance(0.0, 0.0), locate)

    def count(self, a: Block, b: Block, pairs: RowPairs, parting: Parting) -> None:
        """Count what became of the rows."""
        count_rows(a, pairs.a, pairs, parting, self.rows_a)
        count_rows(b, pairs.b, pairs, parting, self.rows_b)

    @property
    def all_aligned(self) -> bool:
        return not (self.left.a or self.left.b)

    @property
    def all_compared(self) -> bool:
        """Whether every row of the aligned requests met its partner in the same context."""
        return all(count.compared == count.total for count in (self.rows_a, self.rows_b))

    def to_dict(self, limit: int) -> dict[str, Any]:
        return {
            "aligned_by": str(self.by),
            "a": self.total_a,
            "b": self.total_b,
            "aligned": self.aligned,
            "renamed": self.renamed,
            "only_a": len(self.left.a),
            "only_b": len(self.left.b),
            "listed_a": self.left.a[:limit],
            "listed_b": self.left.b[:limit],
            "rows": {"a": asdict(self.rows_a), "b": asdict(self.rows_b)},
        }


def _values(block: Block, name: str) -> Values:
    return block.flat(name).take(block.starts, np.zeros_like(block.starts))


def _lists(block: Block, name: str, requests: np.ndarray[Any, np.dtype[np.int64]]) -> Values:
    rows = block.table[name].combine_chunks().take(block.starts[requests])
    return Values(objects(rows.to_pylist()), np.ones(len(requests), dtype=bool))
