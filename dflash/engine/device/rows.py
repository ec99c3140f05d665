"""The rows of a draft file from the records of device rounds: the same columns as the judge's.

Columns are made for all rows of many rounds at once. This needs no torch, so that it may happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.feature_values import FeatureEncoding
from dflash.draftfile.rows import Coded, Column, Ragged
from dflash.engine.device.arrays import DRAFTED, ENDED, OF_ROUNDS, STARTED, VERIFIED, Arrays, Layout, Records
from dflash.engine.device.law import Laws
from dflash.engine.recorder.columns import ColumnMaker
from dflash.engine.recorder.feature_columns import feature_columns
from dflash.engine.states import States, state_texts

LIVE = 0
REASONS = ("none", "eos", "length", "stop", "interrupted")

Ints = NDArray[np.int64]


class RoundNumbers(NamedTuple):
    """What the host alone knows of rows, each `[rows]` int64.

    Attributes:
        record, lane: Where a row's part of the records is.
        reason: Place among `REASONS`.
        length, branches: What was drafted.
    """

    record: Ints
    lane: Ints
    round: Ints
    emitted: Ints
    reason: Ints
    batch_size: Ints
    step: Ints
    length: Ints
    branches: Ints


class Chain(NamedTuple):
    """Rounds as they are handed over: their records as they came, and what the host alone knows.

    Attributes:
        flat: `[records, words]` int32.
        numbers: `RoundNumbers` as `[fields, rows]`.
        laws: `Laws` as `[fields, rows]`.
        states: What decided the rows, step by step, where control did.
        values, scales: As in `Packed`, of all that the records commit.
        lent: Whether these are written over later.
    """

    flat: NDArray[np.int32]
    numbers: Ints
    laws: NDArray[np.float64]
    states: Sequence[States] | None = None
    values: NDArray[np.uint8] | None = None
    scales: NDArray[np.float32] | None = None
    lent: bool = False

    @classmethod
    def of(
        cls,
        records: Records,
        numbers: RoundNumbers,
        laws: NDArray[np.float64],
        states: Sequence[States] | None = None,
    ) -> Chain:
        """Rows of records, with the `Laws` of their lanes as `[lanes, fields]`."""
        packed = records.features or ()
        return cls(records.flat, np.array(numbers), laws[numbers.lane].T, states, *packed)

    @property
    def size(self) -> int:
        """Bytes."""
        arrays = self.flat, self.numbers, self.laws, self.values, self.scales
        return sum(array.nbytes for array in arrays if array is not None)

    def owned(self) -> Chain:
        """The same with nothing that is lent."""
        if not self.lent:
            return self
        values, scales = (None if array is None else array.copy() for array in (self.values, self.scales))
        return self._replace(values=values, scales=scales, lent=False)


class RoundRows:
    """Makes rows of chains of rounds, all of one tree.

    Args:
        layout: of the records.
        maker: of the tree.
        encoding: of features; None where there are none.
    """

    def __init__(self, layout: Layout, maker: ColumnMaker, encoding: FeatureEncoding | None = None) -> None:
        self.layout, self.maker, self.encoding = layout, maker, encoding

    def columns(self, chains: Sequence[Chain], order: Ints | None = None) -> dict[str, Column]:
        """Columns of rows, `order` of those of all chains, one behind the other."""
        joined, numbers, laws = _joined(chains)
        if order is not None:
            numbers, laws = RoundNumbers(*(each[order] for each in numbers)), laws.at(order)
        records = Records(joined, self.layout)
        of_rows = {
            name: values[numbers.record, numbers.lane]
            for name, values in records.items()
            if name not in OF_ROUNDS
        }
        columns = self.maker.columns(of_rows, laws, numbers.length, numbers.branches)
        columns |= _told(numbers) | _times(records["times"][numbers.record]) | _prints(of_rows)
        if self.encoding is not None:
            columns |= self._features(chains, records, numbers)
        if any(chain.states is not None for chain in chains):
            columns["control_state"] = _states(chains, order)
        return columns

    def _features(
        self, chains: Sequence[Chain], records: Records, numbers: RoundNumbers
    ) -> dict[str, Column]:
        """Feature columns: of rows' anchors and accepted nodes."""
        sizes = records.committed
        starts = sizes.cumsum().reshape(sizes.shape) - sizes
        here = numbers.record, numbers.lane
        packed = [(chain.values, chain.scales) for chain in chains if chain.values is not None]
        return feature_columns(packed, starts[here], sizes[here], self.encoding)

    def counted(self, chain: Chain) -> dict[str, Any]:
        """What is counted of live rows: the columns of these names, and `nodes` and `accepted` a row."""
        numbers = RoundNumbers(*chain.numbers)
        records = Records(chain.flat, self.layout)
        here = numbers.record, numbers.lane
        there = records["node_token"][here] >= 0
        shape = self.maker.shape_of(there)
        return {
            "kind": np.zeros(len(numbers.record), np.int8),
            "emitted": numbers.emitted,
            "step": numbers.step,
            "nodes": there.sum(1),
            "accepted": records["count"][here],
            **shape,
            **_times(records["times"][numbers.record]),
        }


def _joined(chains: Sequence[Chain]) -> tuple[NDArray[np.int32], RoundNumbers, Laws]:
    flat = chains[0].flat if len(chains) == 1 else np.concatenate([chain.flat for chain in chains])
    numbers = RoundNumbers(*np.concatenate([chain.numbers for chain in chains], axis=1))
    laws = Laws(*np.concatenate([chain.laws for chain in chains], axis=1))
    starts = np.cumsum([0, *(len(chain.flat) for chain in chains[:-1])])
    shift = np.repeat(starts, [chain.numbers.shape[1] for chain in chains])
    return flat, numbers._replace(record=numbers.record + shift), laws


def _told(numbers: RoundNumbers) -> dict[str, Column]:
    return {
        "kind": np.full(len(numbers.record), LIVE, np.int8),
        "round": numbers.round,
        "emitted": numbers.emitted,
        "truncated_by": Coded(numbers.reason, REASONS),
        "batch_size": numbers.batch_size,
        "step": numbers.step,
    }


def _times(times: NDArray[np.int64]) -> dict[str, Column]:
    """How long rows' stages took, in microseconds; NaN where the clock was not read."""
    at = times.copy()
    # without a drafter, nothing lies between a start and its forward, nor between that and the end
    for place, before in ((DRAFTED, STARTED), (ENDED, VERIFIED)):
        at[:, place] = np.where(at[:, place] == 0, at[:, before], at[:, place])
    read = at.all(1)
    spans = {"draft_us": (STARTED, DRAFTED), "verify_us": (DRAFTED, VERIFIED), "round_us": (STARTED, ENDED)}
    return {
        name: np.where(read, (at[:, end] - at[:, begin]) / 1e3, np.nan)
        for name, (begin, end) in spans.items()
    }


def _prints(of_rows: Arrays) -> dict[str, Column]:
    """Fingerprints of rows' anchors and accepted nodes."""
    if "fingerprint" not in of_rows:
        return {}
    counts, prints = of_rows["count"] + 1, of_rows["fingerprint"]
    kept = np.arange(prints.shape[1]) < counts[:, None]
    return {"feature_fingerprint": Ragged(prints[kept].reshape(-1), counts * prints.shape[2])}


def _states(chains: Sequence[Chain], order: Ints | None) -> Coded:
    """Control states, which are the same for many rows."""
    names: dict[str, int] = {}
    codes: list[int] = []
    for chain in chains:
        if chain.states is None:
            codes += [-1] * chain.numbers.shape[1]
            continue
        for step in chain.states:
            codes += [names.setdefault(text, len(names)) for text in state_texts(step)]
    found = np.array(codes, np.int32)
    return Coded(found if order is None else found[order], list(names))
