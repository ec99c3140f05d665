"""The pass of `lm_head_topk` over the vocabulary: each program leaves what its rows of the head add."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels import lm_head_plan as plan
from dflash.kernels.cache_rows import prefetch_lines
from dflash.kernels.lm_head_borders import floor_of, reach, reached
from dflash.kernels.lm_head_cells import in_cells, keep_top, leave_none, leave_picks
from dflash.kernels.lm_head_draw import finite, load_draw
from dflash.kernels.race_noise import near_log_exponential, near_uniform, words_of_ids, words_of_tile
from dflash.kernels.sort_keys import (
    NO_KEY,
    NO_ORDER,
    TOP_ID,
    key_of,
    order_of_key,
    ordered,
    value_of,
)

RACERS = tl.constexpr(plan.RACERS)


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
def _mapped_noise(
    draw, Map, start, vocabulary, BLOCK_V: tl.constexpr, N: tl.constexpr, CELLS: tl.constexpr
):  # fmt: skip
    """Near log E of mapped tokens, as `in_cells` has them; in turns, as no two share a Philox call."""
    position, purpose, path, k0, k1 = draw
    OWN: tl.constexpr = BLOCK_V // (8 * CELLS)
    inner = (tl.arange(0, CELLS) * 16)[:, None] + tl.arange(0, 8)[None, :]
    noise = tl.zeros([OWN, CELLS, 8, N], tl.float32)
    for own in tl.range(0, OWN):
        ids = start + own // 2 * (16 * CELLS) + own % 2 * 8 + inner
        token = tl.load(Map + tl.minimum(ids, vocabulary - 1))
        word = words_of_ids(
            token[:, :, None] + tl.zeros([CELLS, 8, N], tl.int32), position[None, None, :],
            purpose[None, None, :], path[None, None, :], k0[None, None, :], k1[None, None, :],
        )  # fmt: skip
        mine = (tl.arange(0, OWN) == own)[:, None, None, None]
        noise = tl.where(mine, near_log_exponential(word)[None, :, :, :], noise)
    return noise


@triton.jit
def _race(
    logits, ids, tempered, drawn, noise,
    vocabulary, BLOCK_V: tl.constexpr, N: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The order of a tile's scores in the race, in cells, by noise that is good enough for a shortlist."""
    score = in_cells(logits * tempered[None, :], BLOCK_V, N, CELLS)
    order = ordered(score - tl.where(drawn[None, None, None, :], noise, 0.0))
    return tl.where(ids < vocabulary, order, NO_ORDER)


@triton.jit
def _temper(Temperatures, rows):
    """Which rows are drawn, and what their logits are multiplied by."""
    temperature = tl.load(Temperatures + rows)
    return temperature > 0, 1.0 / tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def _any(hits):
    return tl.max(tl.max(hits.to(tl.int32), 1), 0) > 0


@triton.jit
def _leave_race(
    PartPicks, PartLogits, Map, Temperatures, Positions, Purposes, Paths, Keys, at, live, rows_read, logits,
    ids, least, start, vocabulary,
    BLOCK_V: tl.constexpr, N: tl.constexpr, CELLS: tl.constexpr, PURPOSES: tl.constexpr, PATHS: tl.constexpr,
    MAPPED: tl.constexpr,
):  # fmt: skip
    """Leave who may win each row's race, whose score is `least` or more; return the orders of the best."""
    # read anew, as registers are few in the meantime
    drawn, tempered = _temper(Temperatures, rows_read)
    inside = (start + tl.arange(0, BLOCK_V) < vocabulary)[:, None]
    spread_logits = in_cells(logits, BLOCK_V, N, CELLS)
    best = tl.full([N], NO_KEY, tl.int64)
    if tl.max(drawn.to(tl.int32), 0) > 0:
        draw = load_draw(Positions, Purposes, Paths, Keys, rows_read, PURPOSES, PATHS)
        if MAPPED:
            noise = _mapped_noise(draw, Map, start, vocabulary, BLOCK_V, N, CELLS)
            race = _race(logits, ids, tempered, drawn, noise, vocabulary, BLOCK_V, N, CELLS)
            best = leave_picks(PartPicks, PartLogits, at, race, spread_logits, ids, live)
        else:
            words = words_of_tile(start, *draw, BLOCK_V, N)
            # a score of l / T - log E reaches `least` only if E, and so u, is no more than this
            most = tl.exp(logits * tempered[None, :] - least[None, :])
            chance = tl.where(drawn[None, :], near_uniform(words), 1.0)
            if _any(inside & ((chance > most) == 0)):
                noise = in_cells(near_log_exponential(words), BLOCK_V, N, CELLS)
                race = _race(logits, ids, tempered, drawn, noise, vocabulary, BLOCK_V, N, CELLS)
                best = leave_picks(PartPicks, PartLogits, at, race, spread_logits, ids, live)
            else:
                leave_none(PartPicks, at, live)
    elif _any(inside & ((logits < least[None, :]) == 0)):
        # at temperature 0 the race is that of the logits
        order = tl.where(ids < vocabulary, ordered(spread_logits), NO_ORDER)
        best = leave_picks(PartPicks, PartLogits, at, order, spread_logits, ids, live)
    else:
        leave_none(PartPicks, at, live)
    return order_of_key(best)


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
    best, logits, PartSums, PartPicks, PartLogits, Borders, Found, Map, At, Temperatures, Keys, Positions,
    Purposes, Paths, first, rows_all, start, ids, vocabulary, asked,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, CELLS: tl.constexpr, TOP: tl.constexpr,
    ASKED: tl.constexpr, DRAWS: tl.constexpr, PURPOSES: tl.constexpr, PATHS: tl.constexpr,
    MAPPED: tl.constexpr,
):  # fmt: skip
    """Leave what a tile of logits contributes to rows first…; the best keys so far are returned."""
    rows, part = first + tl.arange(0, BLOCK_N), tl.program_id(1)
    live, rows_read = rows < rows_all, tl.minimum(rows, rows_all - 1)
    tiles = tl.cdiv(vocabulary, BLOCK_V)
    at = rows * tiles + start // BLOCK_V
    order = tl.where((ids < vocabulary)[:, None], ordered(logits), NO_ORDER)
    top = tl.max(order, 0)
    tempered = value_of(top)
    if TOP > 1:
        reach(Borders, rows, live, top, part, TOP + RACERS, 0, TOP)
    if DRAWS:
        _, tempered = _temper(Temperatures, rows_read)
    _leave_sums(PartSums, at, rows_all * tiles, logits, value_of(top), tempered, live, DRAWS)
    if ASKED > 0:
        _find_asked(At, Found, logits, rows, live, ids, start, asked, vocabulary, BLOCK_V, ASKED)
    spread_order = in_cells(order, BLOCK_V, BLOCK_N, CELLS)
    spread = in_cells(ids[:, None] + tl.zeros([BLOCK_V, BLOCK_N], tl.int32), BLOCK_V, BLOCK_N, CELLS)
    if TOP == 1:
        lowest = tl.min(tl.where(order == top[None, :], ids[:, None], TOP_ID), 0)
        best = tl.maximum(best, key_of(top, lowest)[:, None])
    else:
        # as late as may be, when other programs have met theirs
        border = reached(Borders, rows_read, TOP + RACERS, 0, TOP)
        best = keep_top(best, spread_order, spread, border, CELLS, TOP, BLOCK_N)
    if DRAWS:
        # last, where fewest registers are taken
        least = floor_of(reached(Borders, rows_read, TOP + RACERS, TOP, RACERS))
        winner = _leave_race(
            PartPicks, PartLogits, Map, Temperatures, Positions, Purposes, Paths, Keys, at, live, rows_read,
            logits, spread, least, start, vocabulary,
            BLOCK_V, BLOCK_N, CELLS, PURPOSES, PATHS, MAPPED,
        )  # fmt: skip
        reach(Borders, rows, live, winner, part, TOP + RACERS, TOP, RACERS)
    return best


@triton.jit
def _leave_best(PartKeys, best, first, rows_all, BLOCK_N: tl.constexpr, TOP: tl.constexpr):
    """Store the best keys of this program's part."""
    rows, t = first + tl.arange(0, BLOCK_N), tl.arange(0, TOP)[None, :]
    place = (rows * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)[:, None] * TOP + t
    tl.store(PartKeys + place, best, mask=(rows < rows_all)[:, None] & (t >= 0))


@triton.jit
def _row_scale(Squares, rows_read, rows_all, width, scale, eps, parts, PARTS: tl.constexpr):
    """What the logits of each row are scaled by: with a carried norm, its root too."""
    scales = tl.zeros_like(rows_read).to(tl.float32) + scale
    if PARTS > 0:
        squares = tl.zeros_like(scales)
        for base in tl.range(0, parts, PARTS):
            part = (base + tl.arange(0, PARTS))[None, :]
            at = Squares + part * rows_all + rows_read[:, None]
            squares += tl.sum(tl.load(at, mask=part < parts, other=0.0), 1)
        scales *= tl.rsqrt(squares / width + eps)
    return scales


@triton.jit(do_not_specialize=["rows_all", "vocabulary", "share", "asked", "scale", "eps", "norm_parts"])
def score_chunks(
    X, W, Squares, Map, At, Temperatures, Keys, Positions, Purposes, Paths, PartKeys, PartSums, PartPicks,
    PartLogits, Borders, Found,
    stride_x, stride_w, width, rows_all, vocabulary, share, asked, scale, eps, norm_parts,
    BLOCK_N: tl.constexpr, HALVES: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
    CELLS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr, TOP: tl.constexpr,
    ASKED: tl.constexpr, DRAWS: tl.constexpr, PURPOSES: tl.constexpr, PATHS: tl.constexpr,
    MAPPED: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Score a share of the vocabulary's tiles for a tile of rows; grid (row tiles, parts)."""
    HALF: tl.constexpr = BLOCK_N // HALVES
    begin = tl.program_id(1) * share * BLOCK_V
    offsets = tl.arange(0, BLOCK_V)
    if PDL:
        _start(W, begin, offsets, vocabulary, stride_w, PREFETCH)
    first = tl.program_id(0) * BLOCK_N
    rows_read = tl.minimum(first + tl.arange(0, BLOCK_N), rows_all - 1)
    scales = _row_scale(Squares, rows_read, rows_all, width, scale, eps, norm_parts, NORM)
    tiles = tl.cdiv(vocabulary, BLOCK_V)
    best = tl.full([HALF, TOP], NO_KEY, tl.int64)
    more = best
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
            logits = tl.where((ids < vocabulary)[:, None], acc * scales[None, :], -float("inf"))
            acc = tl.zeros([BLOCK_V, BLOCK_N], tl.float32)
            if HALVES == 2:
                apart = tl.permute(tl.reshape(logits, [BLOCK_V, 2, HALF]), (0, 2, 1))
                logits, others = tl.split(apart)
                # 17 rows are 32 with padding: half of them need no judgement
                if first + HALF < rows_all:
                    more = _judge(
                        more, others, PartSums, PartPicks, PartLogits, Borders, Found, Map, At, Temperatures,
                        Keys, Positions, Purposes, Paths, first + HALF, rows_all, start, ids, vocabulary,
                        asked, HALF, BLOCK_V, CELLS, TOP, ASKED, DRAWS, PURPOSES, PATHS, MAPPED,
                    )  # fmt: skip
            best = _judge(
                best, logits, PartSums, PartPicks, PartLogits, Borders, Found, Map, At, Temperatures, Keys,
                Positions, Purposes, Paths, first, rows_all, start, ids, vocabulary, asked,
                HALF, BLOCK_V, CELLS, TOP, ASKED, DRAWS, PURPOSES, PATHS, MAPPED,
            )  # fmt: skip
    _leave_best(PartKeys, best, first, rows_all, HALF, TOP)
    if HALVES == 2:
        _leave_best(PartKeys, more, first + HALF, rows_all, HALF, TOP)
