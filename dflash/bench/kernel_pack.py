"""Packing of features: our kernel, and index_select with quantisation in torch operations and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.bench.kernel_inputs import relative_error
from dflash.bench.kernel_products import Timed
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.kernels.feature_codes import Encoding, decode_features, encode_features, groups_of
from dflash.kernels.pack_features import PACK_TILE, FeatureRing, PackTile, feature_ring, pack_features

Calls = list[Callable[[], object]]
# of decoded rows: compiled division is not IEEE's, so what lies between two codes may take the other one
PEER_ERRORS: dict[Encoding, float] = {"bf16": 0.0, "int8": 1e-3, "fp8": 5e-3}


class PackShape(NamedTuple):
    """Rounds of `lanes` trees of `nodes` nodes that are all accepted, their taps in bfloat16."""

    lanes: int
    nodes: int
    hidden: int
    taps: int
    target_us: float
    encoding: Encoding = "int8"
    kernel: str = "pack"

    @property
    def tokens(self) -> int:
        """Rows packed by one call."""
        return self.lanes * (self.nodes + 1)

    @property
    def width(self) -> int:
        """Numbers a row."""
        return self.hidden * self.taps

    @property
    def name(self) -> str:
        """How the shape is printed."""
        return f"{self.tokens} tokens {self.hidden}x{self.taps} {self.encoding}"

    @property
    def bytes(self) -> int:
        """Fewest bytes that one call must move."""
        if self.encoding == "bf16":
            return 4 * self.tokens * self.width
        return self.tokens * (3 * self.width + 4 * groups_of(self.width))


PACK_SHAPES = [
    PackShape(1, 0, 2048, 3, 2.5),
    PackShape(1, 15, 2048, 3, 2.5),
    PackShape(4, 15, 4096, 3, 3.5),
    PackShape(4, 15, 4096, 3, 3.5, "fp8"),
    PackShape(4, 15, 4096, 3, 3.5, "bf16"),
    PackShape(16, 15, 4096, 3, 5),
    PackShape(64, 15, 4096, 3, 13),
]


class PackInputs(NamedTuple):
    """One buffer set, with a ring of its own."""

    taps: Tensor
    count: Tensor
    path: Tensor
    ring: FeatureRing


def make_packs(shape: PackShape, count: int) -> list[PackInputs]:
    """Draw `count` buffer sets whose rings hold two calls."""
    nodes = torch.arange(shape.nodes, dtype=torch.int32, device="cuda").expand(shape.lanes, -1).contiguous()
    accepted = torch.full((shape.lanes,), shape.nodes, dtype=torch.int32, device="cuda")
    size = (shape.lanes, shape.nodes + 1, shape.width)
    return [
        PackInputs(
            torch.randn(size, dtype=torch.bfloat16, device="cuda"), accepted, nodes,
            feature_ring(2 * shape.tokens, shape.width, shape.encoding, "cuda"),
        )
        for _ in range(count)
    ]  # fmt: skip


def our_packs(sets: Sequence[PackInputs], tile: PackTile = PACK_TILE) -> Calls:
    """Our kernel on every buffer set."""
    return [lambda s=s: pack_features(*s, tile=tile) for s in sets]


def error_of(shape: PackShape, inputs: PackInputs) -> float:
    """Relative error of the rows that the last call wrote, and 1 if their number is wrong."""
    ring = inputs.ring
    written = int(ring.written)
    if written < shape.tokens or written % shape.tokens:
        return 1.0
    place = torch.arange(written - shape.tokens, written, device="cuda") % len(ring.values)
    values, scales = encode_features(inputs.taps.flatten(0, 1), shape.encoding)
    # bytes are gathered: not every index operation takes eight-bit floats
    bits = ring.values.view(torch.uint8)[place].view(ring.values.dtype)
    found = decode_features(bits, None if ring.scales is None else ring.scales[place])
    return relative_error(found, decode_features(values, scales))


def torch_pack(shape: PackShape, inputs: PackInputs, rows: Tensor) -> None:
    """The same in torch operations, which are told beforehand what was accepted."""
    taken = inputs.taps.flatten(0, 1).index_select(0, rows)
    values, scales = encode_features(taken, shape.encoding)
    ring = inputs.ring
    place = (ring.written + torch.arange(shape.tokens, device="cuda")) % len(ring.values)
    ring.values.view(torch.uint8).index_copy_(0, place, values.view(torch.uint8))
    if ring.scales is not None and scales is not None:
        ring.scales.index_copy_(0, place, scales)
    ring.written.add_(shape.tokens)


def compiled_packs(shape: PackShape, sets: Sequence[PackInputs]) -> Calls:
    """The torch operations under torch.compile."""
    rows = torch.arange(shape.tokens, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: torch_pack(shape, inputs, rows), dynamic=False)
    return [lambda s=s: compiled(s) for s in sets]


@torch.inference_mode()
def measure_pack(shape: PackShape, compiled: bool) -> list[Timed]:
    """Time our kernel and every peer; ours comes first."""
    sets = make_packs(shape, rotations(shape.bytes))
    rows = torch.arange(shape.tokens, device="cuda")
    ways: dict[str, Callable[[], Calls]] = {
        "dflash fast": lambda: our_packs(sets),
        "torch operations": lambda: [lambda s=s: torch_pack(shape, s, rows) for s in sets],
    }
    if compiled:
        ways["torch.compile"] = lambda: compiled_packs(shape, sets)
    return [_time(shape, sets, name, build) for name, build in ways.items()]


def _time(shape: PackShape, sets: Sequence[PackInputs], name: str, build: Callable[[], Calls]) -> Timed:
    """Time one way; a peer that cannot run the shape, or is wrong, says so."""
    first = sets[0].ring
    first.written.zero_()
    first.values.view(torch.uint8).fill_(0x5A)
    try:
        calls = build()
        calls[0]()
        error = error_of(shape, sets[0])
        if error > PEER_ERRORS[shape.encoding] and not name.startswith("dflash"):
            return Timed(name, None, True, error, "wrong output")
        return Timed(name, time_graph(calls), True, error, None)
    except Exception as failure:
        if name.startswith("dflash"):
            raise
        return Timed(name, None, True, None, f"{type(failure).__name__}: {failure}"[:300])
