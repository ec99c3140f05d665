"""The pass of `lm_head_topk` over the vocabulary: each program leaves what its rows of the head add."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels.cache_rows import prefetch_lines
from dflash.kernels.lm_head_draw import finite, load_draw
from dflash.kernels.race_noise import near_log_exponential, words_of_ids, words_of_tile
from dflash.kernels.sort_keys import NO_KEY, NO_ORDER, TOP_ID, key_of, order_of_key, ordered, value_of


@triton.jit
def _products(
    acc, X, W, rows, ids, at, width, stride_x, stride_w,
    BLOCK_D: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add products of columns at… to acc [BLOCK_V, BLOCK_N]; weights stand left, so few rows pad to 16."""
    d = at + tl.arange(0, BLOCK_D)
    w_ptrs = W + ids.to(tl.int64)[:, None] * stride_w + d[None, :]
    x_ptrs = X + rows.to(tl.int64)[:, None] * stride_x + d[None, :]
    if EVEN:
        w = tl.load(w_ptrs, eviction_policy="evict_first")
        x = tl.load(x_ptrs, eviction_policy="evict_last")
    else:
        w = tl.load(w_ptrs, mask=(d < width)[None, :], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptrs, mask=(d < width)[None, :], other=0.0, eviction_policy="evict_last")
    return tl.dot(w, tl.trans(x), acc, input_precision="ieee")


@triton.jit
def _leave_sums(PartSums, at, apart, logits, highest, tempered, live, DRAWS: tl.constexpr):
    """Leave a tile's largest logit m and its sums of exp(l - m) and exp((l - m) / T)."""
    below = logits - finite(highest)[None, :]
    tl.store(PartSums + at, highest, mask=live)
    tl.store(PartSums + apart + at, tl.sum(tl.exp(below), 0), mask=live)
    if DRAWS:
        tl.store(PartSums + 2 * apart + at, tl.sum(tl.exp(below * tempered[None, :]), 0), mask=live)


@triton.jit
def _keep_top(best, order, top, ids, live):
    """Put a tile's values into the best keys so far [BLOCK_N, TOP], one a row and turn while any is better.

    Ids ascend from tile to tile, so of equal values the first to come has the lowest.
    """
    least = tl.min(best, 1)
    border = order_of_key(least)
    while tl.max((live & (top > border)).to(tl.int32), 0) > 0:
        first = tl.min(tl.where(order == top[None, :], ids[:, None], TOP_ID), 0)
        key = tl.where(top > border, key_of(top, first), least)
        best = tl.where(best == least[:, None], key[:, None], best)
        order = tl.where(ids[:, None] == first[None, :], NO_ORDER, order)
        top = tl.max(order, 0)
        least = tl.min(best, 1)
        border = order_of_key(least)
    return best


@triton.jit
def _leave_pick(PartPicks, PartLogits, at, order, logits, ids, live):
    """Leave the key of a tile's highest score, `NO_KEY` if there is none, and its logit; return its id."""
    best = tl.max(order, 0)
    first = tl.min(tl.where(order == best[None, :], ids[:, None], TOP_ID), 0)
    tl.store(PartPicks + at, tl.where(best == NO_ORDER, NO_KEY, key_of(best, first)), mask=live)
    logit = tl.sum(tl.where(ids[:, None] == first[None, :], logits, 0.0), 0)
    tl.store(PartLogits + at, logit, mask=live)
    return first


@triton.jit
def _find_asked(
    At, Found, logits, rows, live, ids, start, asked, vocabulary,
    BLOCK_V: tl.constexpr, ASKED: tl.constexpr,
):  # fmt: skip
    """Write the logits that were asked for and lie in this tile."""
    end = tl.minimum(start + BLOCK_V, vocabulary)
    j = tl.arange(0, ASKED)
    at = rows[:, None] * asked + j[None, :]
    wanted = tl.load(At + at, mask=live[:, None] & (j < asked)[None, :], other=-1)
    if tl.max(tl.max(((wanted >= start) & (wanted < end)).to(tl.int32), 1), 0) > 0:
        for place in tl.range(0, asked):
            wish = tl.load(At + rows * asked + place, mask=live, other=-1)
            here = (wish >= start) & (wish < end)
            if tl.max(here.to(tl.int32), 0) > 0:
                value = tl.sum(tl.where(ids[:, None] == wish[None, :], logits, 0.0), 0)
                tl.store(Found + rows * asked + place, value, mask=here)


@triton.jit
def _leave_picks(
    PartPicks, PartLogits, at, logits, tempered, drawn, draw, Map, start, ids, vocabulary, live,
    BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Leave the two tokens of a tile that are ahead in the race, by noise that is good enough for that."""
    position, purpose, path, k0, k1 = draw
    if MAPPED:
        token = tl.load(Map + tl.minimum(ids, vocabulary - 1))
        word = words_of_ids(
            token[:, None] + tl.zeros([BLOCK_V, BLOCK_N], tl.int32),
            position[None, :], purpose[None, :], path[None, :], k0[None, :], k1[None, :],
        )  # fmt: skip
    else:
        word = words_of_tile(start, position, purpose, path, k0, k1, BLOCK_V, BLOCK_N)
    noise = tl.where(drawn[None, :], near_log_exponential(word), 0.0)
    order = ordered(logits * tempered[None, :] - noise)
    order = tl.where((ids < vocabulary)[:, None], order, NO_ORDER)
    first = _leave_pick(PartPicks, PartLogits, 2 * at, order, logits, ids, live)
    order = tl.where(ids[:, None] == first[None, :], NO_ORDER, order)
    _leave_pick(PartPicks, PartLogits, 2 * at + 1, order, logits, ids, live)


@triton.jit
def _start(W, begin, offsets, vocabulary, stride_w, PREFETCH: tl.constexpr):
    """Ask for the first weights, which need not wait for the preceding kernel; then wait for it."""
    if PREFETCH > 0:
        ahead = tl.minimum(begin + offsets, vocabulary - 1).to(tl.int64)
        prefetch_lines(W + ahead * stride_w, PREFETCH)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _judge(
    best, logits, PartSums, PartPicks, PartLogits, Found, Map, At, Temperatures, Keys, Positions, Purposes,
    Paths, rows, rows_all, start, ids, vocabulary, asked,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, TOP: tl.constexpr, ASKED: tl.constexpr,
    DRAWS: tl.constexpr, PURPOSES: tl.constexpr, PATHS: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Leave what a whole tile of logits contributes; the best keys so far are returned."""
    live, rows_read = rows < rows_all, tl.minimum(rows, rows_all - 1)
    tiles = tl.cdiv(vocabulary, BLOCK_V)
    at = rows * tiles + start // BLOCK_V
    order = tl.where((ids < vocabulary)[:, None], ordered(logits), NO_ORDER)
    top = tl.max(order, 0)
    tempered = value_of(top)
    if DRAWS:
        temperature = tl.load(Temperatures + rows_read)
        tempered = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    _leave_sums(PartSums, at, rows_all * tiles, logits, value_of(top), tempered, live, DRAWS)
    if ASKED > 0:
        _find_asked(At, Found, logits, rows, live, ids, start, asked, vocabulary, BLOCK_V, ASKED)
    best = _keep_top(best, order, top, ids, live)
    if DRAWS:
        # last, where fewest registers are taken
        draw = load_draw(Positions, Purposes, Paths, Keys, rows_read, PURPOSES, PATHS)
        _leave_picks(
            PartPicks, PartLogits, at, logits, tempered, temperature > 0, draw, Map, start, ids, vocabulary,
            live, BLOCK_V, BLOCK_N, MAPPED,
        )  # fmt: skip
    return best


@triton.jit(do_not_specialize=["rows_all", "vocabulary", "share", "asked", "scale"])
def score_chunks(
    X, W, Map, At, Temperatures, Keys, Positions, Purposes, Paths, PartKeys, PartSums, PartPicks, PartLogits,
    Found,
    stride_x, stride_w, width, rows_all, vocabulary, share, asked, scale,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, TOP: tl.constexpr, ASKED: tl.constexpr, DRAWS: tl.constexpr,
    PURPOSES: tl.constexpr, PATHS: tl.constexpr, MAPPED: tl.constexpr, PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Score a share of the vocabulary's tiles for a tile of rows; grid (row tiles, parts)."""
    begin = tl.program_id(1) * share * BLOCK_V
    offsets = tl.arange(0, BLOCK_V)
    if PDL:
        _start(W, begin, offsets, vocabulary, stride_w, PREFETCH)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live, rows_read = rows < rows_all, tl.minimum(rows, rows_all - 1)
    tiles = tl.cdiv(vocabulary, BLOCK_V)
    # keys of nothing differ, so that one at a time is replaced
    best = tl.full([BLOCK_N, TOP], NO_KEY, tl.int64) + tl.arange(0, TOP)[None, :]
    acc = tl.zeros([BLOCK_V, BLOCK_N], tl.float32)
    columns = tl.cdiv(width, BLOCK_D)
    mine = tl.minimum(share, tiles - tl.program_id(1) * share)
    # one loop over tiles and columns: the next tile's weights are on their way while this one is judged
    for step in tl.range(0, mine * columns, num_stages=STAGES):
        start = begin + step // columns * BLOCK_V
        ids = start + offsets
        acc = _products(
            acc, X, W, rows_read, tl.minimum(ids, vocabulary - 1), step % columns * BLOCK_D, width,
            stride_x, stride_w, BLOCK_D, EVEN,
        )  # fmt: skip
        if step % columns == columns - 1:
            logits = tl.where((ids < vocabulary)[:, None], acc * scale, -float("inf"))
            acc = tl.zeros([BLOCK_V, BLOCK_N], tl.float32)
            best = _judge(
                best, logits, PartSums, PartPicks, PartLogits, Found, Map, At, Temperatures, Keys, Positions,
                Purposes, Paths, rows, rows_all, start, ids, vocabulary, asked,
                BLOCK_N, BLOCK_V, TOP, ASKED, DRAWS, PURPOSES, PATHS, MAPPED,
            )  # fmt: skip
    t = tl.arange(0, TOP)[None, :]
    place = (rows * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)[:, None] * TOP + t
    tl.store(PartKeys + place, best, mask=live[:, None] & (t >= 0))
