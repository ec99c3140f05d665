"""The shapes that the kernels are measured on, with their target times."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kernel = Literal["tree", "step", "block", "accept"]


class Shape(NamedTuple):
    """One attention shape in bfloat16, or one acceptance shape (heads and head are 0)."""

    kernel: Kernel
    batch: int
    context: int
    heads: int
    kv_heads: int
    head: int
    nodes: int
    """Query rows; for `accept`, drafted nodes."""
    target_us: float

    @property
    def name(self) -> str:
        """How the shape is printed."""
        if self.kernel == "accept":
            return f"B{self.batch} n{self.nodes} depth{self.context}"
        return f"B{self.batch} ctx{self.context} {self.heads}/{self.kv_heads} d{self.head} n{self.nodes}"

    @property
    def tail(self) -> int:
        """Rows after the trunk: the nodes, or four rows a branch in a draft step."""
        return self.nodes * 4 if self.kernel == "step" else self.nodes

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V that one call must read."""
        return 2 * self.batch * self.kv_heads * (self.context + self.tail) * self.head * 2

    @property
    def bytes(self) -> int:
        """Fewest bytes that one call must move."""
        return self.cache_bytes + 2 * self.batch * self.heads * self.nodes * self.head * 2


SHAPES = [
    Shape("tree", 1, 1024, 32, 8, 64, 16, 6),
    Shape("tree", 1, 8192, 32, 8, 128, 64, 26),
    Shape("tree", 8, 4096, 32, 8, 128, 32, 46),
    Shape("tree", 32, 4096, 32, 8, 128, 16, 145),
    Shape("tree", 16, 32768, 32, 8, 128, 16, 555),
    Shape("step", 1, 1024, 32, 8, 64, 4, 5),
    Shape("step", 1, 8192, 32, 8, 128, 4, 13),
    Shape("step", 8, 4096, 32, 8, 128, 4, 38),
    Shape("step", 32, 2048, 16, 8, 128, 4, 72),
    Shape("step", 64, 1024, 32, 8, 64, 1, 40),
    Shape("block", 1, 1024, 32, 8, 128, 16, 6),
    Shape("block", 1, 16384, 32, 8, 128, 16, 22),
    Shape("block", 8, 4096, 32, 8, 128, 16, 38),
    Shape("block", 32, 4096, 16, 8, 128, 8, 140),
    Shape("block", 64, 2048, 32, 8, 128, 16, 143),
]

# the default target's own shape, which no table has a target for
EXTRA = [Shape("tree", 1, 512, 9, 3, 64, 16, 0), Shape("tree", 1, 4096, 9, 3, 64, 16, 0)]

ACCEPT_SHAPES = [
    Shape("accept", batch, depth, 0, 0, 0, nodes, 3)
    for batch, nodes, depth in ((1, 17, 4), (1, 64, 8), (8, 32, 8), (32, 16, 16), (64, 64, 8))
]
