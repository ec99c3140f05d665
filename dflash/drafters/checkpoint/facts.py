"""Look facts up in a configuration, noting all that is missing or not understood instead of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(slots=True)
class Facts:
    """Some mappings of one configuration, the first to be asked first.

    Attributes:
        mismatches: What was missing or is not understood, one line each.
    """

    places: tuple[Json, ...]
    mismatches: list[str] = field(default_factory=list)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of some names that is there and not null; every name is looked for in all places."""
        for name in names:
            for place in self.places:
                if place.get(name) is not None:
                    return place[name]
        return default

    def need(self, *names: str) -> Any:
        """The same, noting a fact that is missing; 0 stands for it."""
        found = self.get(*names)
        if found is None:
            self.mismatches.append(f"config.json: expected {' or '.join(names)}, found none")
            return 0
        return found

    def refuse(self, name: str, found: Any, expected: str) -> None:
        """Note a value that is not understood."""
        self.mismatches.append(f"config.json: expected {name} to be {expected}, found {found!r}")
