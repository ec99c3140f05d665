"""How many children each node of a drafted tree has, by depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from dflash.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fan:
    """Children by depth: `(3, 2)` is three at the anchor, two under each of those, one at every deeper node.

    A smaller number of branches keeps the first root-to-leaf paths, so that a live draft of it is the
    recorded tree, cut.
    """

    children: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Fan:
        """Read `3,2`.

        Raises:
            UsageError: A part is no whole number from 1.
        """
        if not re.fullmatch(r"[1-9]\d{0,2}(,[1-9]\d{0,2})*", text):
            raise UsageError(f"Expected a tree as children by depth, like 3,2, found {text!r}.")
        return cls(tuple(map(int, text.split(","))))

    @property
    def branches(self) -> int:
        """Root-to-leaf paths of the whole tree."""
        return prod(self.children)

    def shares(self, depth: int, branches: int) -> list[int]:
        """Deal the branches through a node among its children at `depth` (1 = under the anchor), first first.

        Returns:
            One number of branches a child; a single child below the fan's last depth.
        """
        if depth > len(self.children):
            return [branches]
        each = prod(self.children[depth:])
        count = min(self.children[depth - 1], -(-branches // each))
        return [min(each, branches - each * child) for child in range(count)]
