"""Columns that are made when they are first looked at, since most rules look at few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dflash.policy.trees import Array


class Columns(Mapping[str, Array]):
    """Columns that are made when they are first looked at.

    Args:
        names: of all columns.
        make: gives a column by name.
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], Array]) -> None:
        self._made: dict[str, Array | None] = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Array:
        found = self._made[name]
        if found is None:
            found = self._made[name] = self._make(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
