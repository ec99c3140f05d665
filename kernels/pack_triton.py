"""The Triton kernel of `pack_features`: programs take pieces of accepted rows to their places in the ring."""

from __future__ import annotations

import triton
import triton.language as tl

INT8 = tl.constexpr(1)
INFINITE = tl.constexpr(0x7F800000)
# adding and subtracting it rounds to whole numbers, ties to even, whatever the platform
WHOLE = tl.constexpr(12582912.0)


@triton.jit
def _float_of(x, BF16: tl.constexpr):
    """Taps as float32; bfloat16 comes as its bits, which the interpreter can read."""
    if BF16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def _bfloat_bits(x):
    """float32 as bits of bfloat16, to nearest, ties to even."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.int16)


@triton.jit
def _e4m3_bits(x, NATIVE: tl.constexpr):
    """float32 of at most 448 as bits of e4m3, to nearest, ties to even; the interpreter's cast is not."""
    if NATIVE:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    whole = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    small = (tl.abs(x) * 512.0 + WHOLE - WHOLE).to(tl.int32)
    code = tl.where(tl.abs(x) < 0.015625, small, whole)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _codes(x, LARGEST: tl.constexpr, LEAST: tl.constexpr, CODE: tl.constexpr, NATIVE: tl.constexpr):
    """Codes [GROUPS, 128], as bytes, and scales [GROUPS]."""
    # bits without a sign are in the order of what they stand for, infinity and NaN above all
    high = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    finite = high < INFINITE
    peak = tl.maximum(high.to(tl.float32, bitcast=True), LEAST)
    largest = tl.zeros_like(peak) + LARGEST
    scaled = tl.where(finite[:, None], x * tl.div_rn(largest, peak)[:, None], 0.0)
    scale = tl.where(finite, tl.div_rn(peak, largest), float("nan"))
    if CODE == INT8:
        # the low bits of the sum are the whole number itself
        return ((scaled + WHOLE).to(tl.int32, bitcast=True) & 0xFF).to(tl.uint8), scale
    return _e4m3_bits(scaled, NATIVE), scale


@triton.jit
def _pack_piece(
    Taps, Values, Scales, source, place, piece, width, stride_slot,
    GROUPS: tl.constexpr, CODE: tl.constexpr, BF16: tl.constexpr, LARGEST: tl.constexpr, LEAST: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Encode GROUPS x 128 columns of one row."""
    group = piece * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < width
    x = tl.load(Taps + source * stride_slot + column, mask=inside, other=0)
    if CODE == 0:
        values = x if BF16 else _bfloat_bits(_float_of(x, BF16))
    else:
        values, scale = _codes(_float_of(x, BF16), LARGEST, LEAST, CODE, NATIVE)
        groups = tl.cdiv(width, 128)
        tl.store(Scales + place * groups + group, scale, mask=group < groups)
    tl.store(Values + place * width + column, values, mask=inside)


@triton.jit(do_not_specialize=["lanes", "slots", "pieces", "capacity"])
def pack_rows(
    Taps, Count, Path, Live, Values, Scales, Written, Span, Tickets,
    stride_lane, stride_slot, lanes, slots, pieces, width, capacity,
    LANES: tl.constexpr, GROUPS: tl.constexpr, CODE: tl.constexpr, BF16: tl.constexpr,
    LARGEST: tl.constexpr, LEAST: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
    RESTS: tl.constexpr, TELLS: tl.constexpr,
):  # fmt: skip
    """Pack every piece of every accepted row, then move the counter on; grid (programs)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lane_ids = tl.arange(0, LANES)
    kept = tl.maximum(tl.load(Count + lane_ids, mask=lane_ids < lanes, other=-1) + 1, 0)
    if RESTS:
        kept = tl.where(tl.load(Live + lane_ids, mask=lane_ids < lanes, other=0) > 0, kept, 0)
    written = tl.load(Written)
    for item in tl.range(tl.program_id(0), lanes * slots * pieces, tl.num_programs(0)):
        lane, slot = item // pieces // slots, item // pieces % slots
        # side by side, as neither waits for the other; what is past the count is not used
        mine = tl.load(Count + lane) + 1
        if RESTS:
            mine = tl.where(tl.load(Live + lane) > 0, mine, 0)
        node = tl.load(Path + lane * (slots - 1) + slot - 1, mask=slot > 0, other=-1)
        if slot < mine:
            before = tl.sum(tl.where(lane_ids < lane, kept, 0), 0)
            _pack_piece(
                Taps + lane.to(tl.int64) * stride_lane, Values, Scales, (node + 1).to(tl.int64),
                (written + before + slot) % capacity, item % pieces, width, stride_slot,
                GROUPS, CODE, BF16, LARGEST, LEAST, NATIVE,
            )  # fmt: skip
    # every thread has read the counter and written its rows before this program counts itself in
    tl.debug_barrier()
    if tl.atomic_add(Tickets, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        after = written + tl.sum(kept, 0)
        if TELLS:
            tl.store(Span, written)
            tl.store(Span + 1, after)
        tl.store(Written, after)
        tl.store(Tickets, 0)
