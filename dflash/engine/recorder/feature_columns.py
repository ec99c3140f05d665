"""Columns of features from rows that were packed on the device, for many rounds at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.feature_values import FeatureEncoding
from dflash.draftfile.rows import Column, Ragged

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Packed = tuple[Bytes, NDArray[np.float32] | None]

# bytes that stay near the processor
BLOCK = 1 << 18


def feature_columns(
    packed: Sequence[Packed], starts: Ints, counts: Ints, encoding: FeatureEncoding
) -> dict[str, Column]:
    """`feature_values` and `feature_scale` of rows.

    Args:
        packed: values `[tokens, bytes]` and scales `[tokens, scales]`, part after part.
        starts: `[rows]` where in all of them each row's tokens begin.
        counts: `[rows]` tokens of each.
        encoding: of the values.
    """
    tokens = _tokens(starts, counts)
    values = _taken([part[0] for part in packed], tokens)
    lengths = counts * values.shape[1]
    scales = [part[1] for part in packed if part[1] is not None]
    if encoding == "bf16":
        values = planes(values, counts)
    columns: dict[str, Column] = {"feature_values": Ragged(values.reshape(-1), lengths)}
    if scales:
        found = _taken(scales, tokens)
        columns["feature_scale"] = Ragged(found.reshape(-1), counts * found.shape[1])
    return columns


def planes(words: Bytes, counts: Ints) -> Bytes:
    """bfloat16 values of rows, the high bytes of each before its low ones.

    Args:
        words: `[tokens, 2 x width]`, low bytes first, row after row.
        counts: `[rows]` tokens of each.
    """
    made = np.empty_like(words)
    starts = counts.cumsum() - counts
    for count in np.unique(counts[counts > 0]).tolist():
        tokens = starts[counts == count][:, None] + np.arange(count)
        pairs = words[tokens].reshape(len(tokens), -1, 2)
        apart = pairs[:, :, ::-1].transpose(0, 2, 1)
        made[tokens] = np.ascontiguousarray(apart).reshape(*tokens.shape, -1)
    return made


def _tokens(starts: Ints, counts: Ints) -> Ints:
    """Places of all rows' tokens, row after row."""
    ends = counts.cumsum()
    return np.repeat(starts - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)


def _taken(parts: Sequence[NDArray[Any]], tokens: Ints) -> NDArray[Any]:
    """Some lines of all parts, none of them twice."""
    if len(parts) == 1 and len(tokens) == len(parts[0]) and (tokens[1:] - tokens[:-1] == 1).all():
        return parts[0]
    found = np.empty((len(tokens), *parts[0].shape[1:]), parts[0].dtype)
    order = np.argsort(tokens)
    wanted, start, begun = tokens[order], 0, 0
    for block in _blocks(parts):
        end = start + len(block)
        stop = int(np.searchsorted(wanted, end))
        if stop > begun:
            whole = stop - begun == len(block)
            found[order[begun:stop]] = block if whole else block[wanted[begun:stop] - start]
        start, begun = end, stop
    return found


def _blocks(parts: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """The parts, small ones joined: all at once would take memory that the system has to give first."""
    held: list[NDArray[Any]] = []
    size = 0
    for part in parts:
        held.append(part)
        size += part.nbytes
        if size >= BLOCK:
            yield held[0] if len(held) == 1 else np.concatenate(held)
            held, size = [], 0
    if held:
        yield np.concatenate(held)
