"""K9: the hidden states of what a round commits, gathered, encoded and written into the recorder's ring."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import DeviceRefused, DtypeRefused, LayoutRefused, ShapeRefused
from dflash.kernels.feature_codes import CODES, LARGEST, LEAST, Encoding, encode_features, groups_of
from dflash.kernels.tensor_checks import check_dense

MAX_LANES = 1024
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class FeatureRing(NamedTuple):
    """A ring of encoded rows, one a committed token, that the recorder empties."""

    values: Tensor
    """bfloat16, int8 or float8_e4m3fn `[capacity, width]`."""
    scales: Tensor | None
    """float32 `[capacity, ceil(width / 128)]`; None for bfloat16."""
    written: Tensor
    """int64 `[1]`: rows ever written; row i is at i % capacity."""
    tickets: Tensor
    """int32 `[1]`: zero between launches."""


class PackTile(NamedTuple):
    """One configuration of the kernel."""

    groups: int
    """Groups of 128 columns that a program encodes at once; a power of two."""
    warps: int
    programs: int
    """Programs at most: each counts itself in at one address."""


# swept on an H200: see dflash/bench/head_sweep.py
PACK_TILE = PackTile(32, 4, 2112)


def feature_ring(capacity: int, width: int, encoding: Encoding, device: torch.device | str) -> FeatureRing:
    """Allocate an empty ring.

    Args:
        capacity: rows; what is not copied out in time is written over, so the recorder must keep up.
        width: numbers a row, taps x hidden.
        encoding: as in `encode_features`.
        device: where.

    Raises:
        ChoiceRefused: an encoding that does not exist.
    """
    check_choice("encoding", Encoding, encoding)
    values = torch.zeros((capacity, width), dtype=CODES[encoding], device=device)
    scales = None
    if encoding != "bf16":
        scales = torch.zeros((capacity, groups_of(width)), dtype=torch.float32, device=device)
    written = torch.zeros(1, dtype=torch.int64, device=device)
    return FeatureRing(values, scales, written, torch.zeros(1, dtype=torch.int32, device=device))


def _encoding_of(ring: FeatureRing) -> Encoding:
    for encoding, dtype in CODES.items():
        if ring.values.dtype == dtype:
            return encoding
    raise DtypeRefused(
        "ring.values", ", ".join(map(str, CODES.values())), ring.values.dtype, ring.values.shape
    )


def _check_ring(ring: FeatureRing, taps: Tensor) -> Encoding:
    encoding = _encoding_of(ring)
    lanes, slots, width = taps.shape
    if ring.values.dim() != 2 or ring.values.shape[0] < lanes * slots:
        raise ShapeRefused("ring.values", f"[{lanes * slots} rows or more, {width}]", ring.values.shape)
    capacity = len(ring.values)
    check_dense("ring.values", ring.values, CODES[encoding], (capacity, width), taps)
    if (ring.scales is None) != (encoding == "bf16"):
        raise ShapeRefused("ring.scales", "given for int8 and fp8, and for no other encoding", encoding)
    if ring.scales is not None:
        check_dense("ring.scales", ring.scales, torch.float32, (capacity, groups_of(width)), taps)
    check_dense("ring.written", ring.written, torch.int64, (1,), taps)
    check_dense("ring.tickets", ring.tickets, torch.int32, (1,), taps)
    return encoding


def _check(
    taps: Tensor, count: Tensor, path: Tensor, ring: FeatureRing, live: Tensor | None, span: Tensor | None
) -> Encoding:
    if taps.dim() != 3 or not 1 <= taps.shape[0] <= MAX_LANES or taps.shape[1] < 1:
        raise ShapeRefused("taps", f"[1 to {MAX_LANES} lanes, slots, width]", taps.shape)
    if taps.dtype not in _FLOATS:
        raise DtypeRefused("taps", "bfloat16, float16 or float32", taps.dtype, taps.shape)
    step = 16 // taps.element_size()
    if taps.stride(2) != 1 or taps.data_ptr() % 16 or any(s % step for s in taps.stride()[:2]):
        raise LayoutRefused("taps", "rows that start on 16 bytes", taps.stride(), taps.shape)
    lanes, slots, _ = taps.shape
    check_dense("count", count, torch.int32, (lanes,), taps)
    check_dense("path", path, torch.int32, (lanes, slots - 1), taps)
    if live is not None:
        check_dense("live", live, torch.int32, (lanes,), taps)
    if span is not None:
        check_dense("span", span, torch.int64, (2,), taps)
    if ring.values.device != taps.device:
        raise DeviceRefused("ring.values", str(taps.device), ring.values.device, ring.values.shape)
    return _check_ring(ring, taps)


def _reference(
    taps: Tensor, count: Tensor, path: Tensor, ring: FeatureRing, encoding: Encoding, live: Tensor | None
) -> None:
    slot = torch.arange(taps.shape[1], device=taps.device)
    count = count if live is None else torch.where(live > 0, count, -1)
    lane, kept = (slot < count[:, None] + 1).nonzero(as_tuple=True)
    rows = torch.cat([path.new_zeros(len(path), 1), path + 1], 1)
    values, scales = encode_features(taps[lane, rows.long()[lane, kept]], encoding)
    place = (ring.written + torch.arange(len(lane), device=taps.device)) % len(ring.values)
    ring.values.view(torch.uint8)[place] = values.contiguous().view(torch.uint8)
    if ring.scales is not None and scales is not None:
        ring.scales[place] = scales
    ring.written.add_(len(lane))


def _launch(
    taps: Tensor,
    count: Tensor,
    path: Tensor,
    ring: FeatureRing,
    encoding: Encoding,
    tile: PackTile,
    pdl: bool,
    live: Tensor | None = None,
    span: Tensor | None = None,
) -> None:
    from dflash.kernels.pack_triton import pack_rows

    lanes, slots, width = taps.shape
    bits = taps.view(torch.int16) if taps.dtype == torch.bfloat16 else taps
    codes = torch.int16 if encoding == "bf16" else torch.uint8
    pieces = -(-groups_of(width) // tile.groups)
    pdl = pdl and not interpreted()
    pack_rows[(min(lanes * slots * pieces, tile.programs),)](
        bits, count, path, count if live is None else live, ring.values.view(codes),
        ring.written if ring.scales is None else ring.scales, ring.written,
        ring.written if span is None else span, ring.tickets,
        taps.stride(0), taps.stride(1), lanes, slots, pieces, width, len(ring.values),
        LANES=1 << (lanes - 1).bit_length(), GROUPS=tile.groups, CODE=list(CODES).index(encoding),
        RESTS=live is not None, TELLS=span is not None,
        BF16=taps.dtype == torch.bfloat16, LARGEST=LARGEST.get(encoding, 1.0), LEAST=LEAST,
        NATIVE=not interpreted(), PDL=pdl,
        # fused, adding `WHOLE` would round products once instead of twice
        num_warps=tile.warps, launch_pdl=pdl, enable_fp_fusion=False,
    )  # fmt: skip


def pack_features(
    taps: Tensor,
    count: Tensor,
    path: Tensor,
    ring: FeatureRing,
    *,
    live: Tensor | None = None,
    span: Tensor | None = None,
    impl: Impl = "triton",
    tile: PackTile = PACK_TILE,
    pdl: bool = True,
) -> None:
    """Append the features of every lane's anchor and accepted nodes to a ring, without the host.

    Rows go lane by lane, the anchor first, to the ring rows `written`, `written + 1`, … modulo the capacity,
    and `written` moves on by as many. Values and scales are those of `encode_features` bit for bit.

    Args:
        taps: bfloat16, float16 or float32 `[lanes, nodes + 1, width]`, hidden states of anchors and nodes.
        count: int32 `[lanes]`, accepted nodes (`Accepted.count`); -1 for a lane that commits nothing, not
            even its anchor.
        path: int32 `[lanes, nodes]`, the accepted nodes in order (`Accepted.path`).
        ring: from `feature_ring`, with room for all slots of all lanes.
        live: int32 `[lanes]`, above 0 for lanes that commit what was accepted; None for all of them.
        span: int64 `[2]`, gets `written` as it was before, and as it is then; None to keep both to oneself.
        impl: `triton` or `reference`.
        tile: another configuration than the default.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    encoding = _check(taps, count, path, ring, live, span)
    if impl == "reference":
        before = ring.written.clone()
        _reference(taps, count, path, ring, encoding, live)
        if span is not None:
            span.copy_(torch.cat([before, ring.written]))
        return
    require_device("taps", taps)
    return _launch(taps, count, path, ring, encoding, tile, pdl, live, span)
