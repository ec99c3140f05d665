"""How long a round takes on one machine: a profile that schedulers and cost models read instead of a clock.

round = draft(length, branches, batch) + verify(nodes, batch, context), in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash.policy.errors import BadStepTime
from dflash.policy.noise import F64, I64

_DRAFT, _VERIFY = ("length", "branches", "batch"), ("nodes", "batch", "context")
# of profiles that say of no batch what drafting takes, which older ones never do
_ANY_BATCH = _DRAFT[:2]
# the least that is ever verified: no node, for one request, whose anchor is the first token
_SMALLEST = (0.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of microseconds over named axes.

    Attributes:
        axes: ascending points of each axis.
        us: one value a point, the last axis running fastest.
    """

    axes: tuple[tuple[float, ...], ...]
    us: tuple[float, ...]

    def __post_init__(self) -> None:
        points = 1
        for axis in self.axes:
            if not axis or not np.isfinite(axis).all() or (np.diff(axis) <= 0).any() or axis[0] < 0:
                raise BadStepTime("an axis of ascending points from 0 up", list(axis))
            points *= len(axis)
        if len(self.us) != points:
            raise BadStepTime(f"{points} values, one a point of the grid", f"{len(self.us)}")
        if not np.isfinite(self.us).all() or min(self.us) < 0:
            raise BadStepTime("finite times of 0 us or more", min(self.us))

    def at(self, *where: npt.ArrayLike) -> F64:
        """Interpolate linearly along each axis; beyond its ends the nearest stretch goes on, never below 0.

        Args:
            where: a coordinate for each axis, which broadcast together.
        """
        places = np.broadcast_arrays(*(np.asarray(place, dtype=np.float64) for place in where))
        table: F64 = np.array(self.us).reshape([len(axis) for axis in self.axes])
        sides = [_sides(np.array(axis), place) for axis, place in zip(self.axes, places, strict=True)]
        total = np.zeros(places[0].shape)
        for corner in range(2 ** len(sides)):
            # the first axis changes fastest
            ends = [side[corner >> bit & 1] for bit, side in enumerate(sides)]
            weight = ends[0].weight
            for end in ends[1:]:
                weight = weight * end.weight
            total += weight * table[tuple(end.place for end in ends)]
        return np.maximum(total, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The profile of one target, drafter and machine.

    Attributes:
        draft_us: over (length, branches, batch): drafting for the whole batch; without the last axis, it
            takes as long for any.
        verify_us: over (nodes, batch, context): the target's forward and the decision, with `nodes` drafted
            nodes and `context` tokens for each of `batch` requests; above 0 for whatever may be verified.
    """

    draft_us: Grid
    verify_us: Grid
    _least_us: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for grid, axes in ((self.draft_us, self._draft_axes), (self.verify_us, _VERIFY)):
            if len(grid.axes) != len(axes):
                raise BadStepTime(f"the axes {', '.join(axes)}", f"{len(grid.axes)} axes")
        object.__setattr__(self, "_least_us", _least_us(self.verify_us))

    @property
    def _draft_axes(self) -> tuple[str, ...]:
        return _ANY_BATCH if len(self.draft_us.axes) == len(_ANY_BATCH) else _DRAFT

    def draft(self, length: npt.ArrayLike, branches: npt.ArrayLike, batch: npt.ArrayLike) -> F64:
        """Return the microseconds of drafting for a batch; the arguments broadcast."""
        where = np.broadcast_arrays(length, branches, batch)
        return self.draft_us.at(*where[: len(self._draft_axes)])

    def verify(self, nodes: npt.ArrayLike, batch: npt.ArrayLike, context: npt.ArrayLike) -> F64:
        """Return the microseconds of one target forward; `nodes` and `context` are means a request.

        Beyond the grid a stretch that falls goes on no further than to the profile's least time.
        """
        us = self.verify_us.at(nodes, batch, context)
        # no round has an empty context, though one may be asked about
        return np.where(np.asarray(context) < _SMALLEST[2], us, np.maximum(us, self._least_us))

    def for_batch(self, batch: int) -> StepTime:
        """Return the profile of an engine whose rounds take as long for any requests as for so many."""
        lengths, branches = self.draft_us.axes[:2]
        nodes, _, contexts = self.verify_us.axes
        draft = self.draft(np.array(lengths)[:, None], np.array(branches), batch)
        verify = self.verify(np.array(nodes)[:, None], batch, np.array(contexts))
        axis = (float(batch),)
        return StepTime(
            Grid((lengths, branches, axis), tuple(draft.ravel().tolist())),
            Grid((nodes, axis, contexts), tuple(verify.ravel().tolist())),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the form that the header and profile files store; `from_dict` reads it."""
        draft = _table(self.draft_us, self._draft_axes)
        return {"draft_us": draft, "verify_us": _table(self.verify_us, _VERIFY)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StepTime:
        """Read a profile; numbers may be text.

        Raises:
            BadStepTime: something is missing, no number, or no grid, or some round takes no time.
        """
        draft = document.get("draft_us") if isinstance(document, Mapping) else None
        axes = _DRAFT if isinstance(draft, Mapping) and _DRAFT[-1] in draft else _ANY_BATCH
        return cls(_grid(document, "draft_us", axes), _grid(document, "verify_us", _VERIFY))


def _least_us(verify_us: Grid) -> float:
    """Return the least time of the grid, drawn out to the least that is ever verified.

    Raises:
        BadStepTime: it is 0.
    """
    # linear in between, so that the least lies at a point
    axes = [
        [low, *(point for point in axis if point > low)]
        for low, axis in zip(_SMALLEST, verify_us.axes, strict=True)
    ]
    places = np.meshgrid(*axes, indexing="ij")
    us = verify_us.at(*places)
    lowest = np.unravel_index(np.argmin(us), us.shape)
    if not us[lowest] > 0:
        where = ", ".join(f"{name} {place[lowest]:g}" for name, place in zip(_VERIFY, places, strict=True))
        raise BadStepTime("times above 0 us to verify anything", f"verify_us {us[lowest]:g} at {where}")
    return float(us[lowest])


def _corners(axis: F64, place: F64) -> tuple[I64, F64]:
    """Return the point to the left of each place, and how far beyond it the place lies, as a share."""
    if len(axis) == 1:
        return np.zeros(place.shape, dtype=np.int64), np.zeros(place.shape)
    left = np.clip(np.searchsorted(axis, place, side="right") - 1, 0, len(axis) - 2)
    return left, (place - axis[left]) / (axis[left + 1] - axis[left])


class _End(NamedTuple):
    """One end of the stretches of an axis that places lie on: which point, and how much it counts."""

    place: I64
    weight: F64


def _sides(axis: F64, place: F64) -> tuple[_End, _End]:
    left, share = _corners(axis, place)
    return _End(left, 1.0 - share), _End(np.minimum(left + 1, len(axis) - 1), share)


def _table(grid: Grid, names: Sequence[str]) -> dict[str, Any]:
    points = {name: list(axis) for name, axis in zip(names, grid.axes, strict=True)}
    return {**points, "us": list(grid.us)}


def _grid(document: Mapping[str, Any], part: str, names: Sequence[str]) -> Grid:
    table = document.get(part) if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping) or not {*names, "us"} <= table.keys():
        raise BadStepTime(f"{part} with {', '.join(names)} and us", table)
    axes = tuple(_numbers(table[name]) for name in names)
    return Grid(axes, _numbers(table["us"]))


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadStepTime("a list of numbers", value)
    try:
        return tuple(float(item) for item in value)
    except (TypeError, ValueError):
        raise BadStepTime("a list of numbers", value) from None
