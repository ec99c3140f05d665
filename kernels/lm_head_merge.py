"""The merge of `lm_head_topk`: what the parts of the vocabulary left, joined row by row in part order."""

from __future__ import annotations

import triton
import triton.language as tl

from dflash.kernels import lm_head_plan as plan
from dflash.kernels.lm_head_draw import finite, load_draw
from dflash.kernels.race_noise import log_exponential, words_of_ids
from dflash.kernels.sort_keys import (
    NO_KEY,
    NO_ORDER,
    id_of_key,
    key_of,
    order_of_key,
    ordered,
    value_of,
)

RACERS = tl.constexpr(plan.RACERS)
# enough for a winner and a runner-up whose near scores are off by 1e-4
SHORT = tl.constexpr(4)


@triton.jit
def _store_top(
    PartKeys, Values, Ids, Map, row, parts, top,
    LISTS: tl.constexpr, TOP: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Join the parts' keys, which rise, store the best, and return the largest logit."""
    part, place = tl.arange(0, LISTS), tl.arange(0, TOP)
    real = part < parts
    lists = PartKeys + (row.to(tl.int64) * parts + part) * TOP
    head = tl.load(lists + TOP - 1, mask=real, other=NO_KEY)
    # the next one of each list is there before it is wanted
    at = tl.zeros([LISTS], tl.int32) + TOP - 2
    follower = tl.load(lists + at, mask=real & (at >= 0), other=NO_KEY)
    keys = tl.full([TOP], NO_KEY, tl.int64)
    for one in range(top):
        best = tl.max(head, 0)
        keys = tl.where(place == one, best, keys)
        won = head == best
        head, at = tl.where(won, follower, head), tl.where(won, at - 1, at)
        after = tl.load(lists + at, mask=won & real & (at >= 0), other=NO_KEY)
        follower = tl.where(won, after, follower)
    token = id_of_key(keys)
    if MAPPED:
        token = tl.load(Map + token, mask=place < top, other=0)
    tl.store(Values + row * top + place, value_of(order_of_key(keys)), mask=place < top)
    tl.store(Ids + row * top + place, token, mask=place < top)
    return value_of(order_of_key(tl.max(keys, 0)))


@triton.jit
def store_lse(
    PartSums, Lse, LseT, row, rows_all, tiles, highest, tempered, TILES: tl.constexpr, DRAWS: tl.constexpr
):  # fmt: skip
    """Log-sum-exp of the logits, and of the logits over the temperature, in tile order."""
    shift = finite(highest)
    total = tl.zeros([TILES], tl.float32)
    total_t = total
    for base in tl.range(0, tiles, TILES):
        tile = base + tl.arange(0, TILES)
        at, real = row * tiles + tile, tile < tiles
        m = tl.load(PartSums + at, mask=real, other=-float("inf"))
        mass = tl.load(PartSums + rows_all * tiles + at, mask=real, other=0.0)
        fade, some = finite(m) - shift, m != -float("inf")
        total += tl.where(some, mass * tl.exp(fade), 0.0)
        if DRAWS:
            mass = tl.load(PartSums + 2 * rows_all * tiles + at, mask=real, other=0.0)
            total_t += tl.where(some, mass * tl.exp(fade * tempered), 0.0)
    tl.store(Lse + row, shift + tl.log(tl.sum(total, 0)))
    if DRAWS:
        tl.store(LseT + row, shift * tempered + tl.log(tl.sum(total_t, 0)))


@triton.jit
def _highest(PartSums, row, tiles, TILES: tl.constexpr):
    """The largest logit of a row, from its tiles."""
    best = tl.full([TILES], NO_ORDER, tl.int32)
    for base in tl.range(0, tiles, TILES):
        tile = base + tl.arange(0, TILES)
        m = tl.load(PartSums + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
        best = tl.maximum(best, ordered(m))
    return value_of(tl.max(best, 0))


@triton.jit
def _temper(Temperatures, row):
    """Whether a row is drawn, and what its logits are divided by."""
    temperature = tl.load(Temperatures + row)
    drawn = temperature > 0
    return drawn, tl.where(drawn, temperature, 1.0)


@triton.jit
def _shortlist(PartPicks, start, count, PICKS: tl.constexpr):
    """The highest of the parts' near scores, as keys [SHORT], and where they lie."""
    # keys of nothing differ, so that one at a time is replaced
    best = NO_KEY + tl.arange(0, SHORT).to(tl.int64)
    place = tl.zeros([SHORT], tl.int32)
    for base in tl.range(0, count, PICKS):
        pick = base + tl.arange(0, PICKS)
        keys = tl.load(PartPicks + start + pick, mask=pick < count, other=NO_KEY)
        for _ in tl.static_range(SHORT):
            one = tl.max(keys, 0)
            at = tl.max(tl.where(keys == one, pick, 0), 0)
            least = tl.min(best, 0)
            enters = (best == least) & (one > least)
            best, place = tl.where(enters, one, best), tl.where(enters, at, place)
            keys = tl.where(keys == one, NO_KEY, keys)
    return best, place


@triton.jit
def store_choice(
    PartPicks, PartLogits, Choice, Logit, Lead, Map, row, tiles, highest, temperature, drawn, draw,
    PICKS: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Race the shortlist in the CPU's arithmetic, float32 of (l - max) / T - log E, and store who wins."""
    position, purpose, path, k0, k1 = draw
    start = row.to(tl.int64) * tiles * 2
    near, place = _shortlist(PartPicks, start, 2 * tiles, PICKS)
    real = order_of_key(near) != NO_ORDER
    logit = tl.load(PartLogits + start + place, mask=real, other=0.0)
    token = tl.where(real, id_of_key(near), 0)
    if MAPPED:
        token = tl.load(Map + token)
    noise = log_exponential(words_of_ids(token, position, purpose, path, k0, k1))
    shift = tl.where(highest == highest, highest, 0.0)
    scaled = tl.div_rn(logit - shift, tl.zeros([SHORT], tl.float32) + temperature)
    keys = tl.where(real, key_of(ordered(scaled - tl.where(drawn, noise, 0.0)), token), NO_KEY)
    first = tl.max(keys, 0)
    second = tl.max(tl.where(keys == first, NO_KEY, keys), 0)
    lead = value_of(order_of_key(first)) - value_of(order_of_key(second))
    tl.store(Choice + row, id_of_key(first))
    tl.store(Logit + row, tl.sum(tl.where(keys == first, logit, 0.0), 0))
    tl.store(Lead + row, tl.where(second == NO_KEY, float("inf"), lead))


@triton.jit
def _store_absent(At, Found, row, asked, vocabulary, ASKED: tl.constexpr):
    """What is none of the head's rows has logit -inf."""
    j = tl.arange(0, ASKED)
    wanted = tl.load(At + row * asked + j, mask=j < asked, other=0)
    absent = (j < asked) & ((wanted < 0) | (wanted >= vocabulary))
    tl.store(Found + row * asked + j, tl.full([ASKED], -float("inf"), tl.float32), mask=absent)


@triton.jit(do_not_specialize=["rows_all", "parts", "tiles", "vocabulary", "asked", "top"])
def merge_parts(
    Map, At, Temperatures, Keys, Positions, Purposes, Paths, PartKeys, PartSums, PartPicks, PartLogits,
    Borders, Values, Ids, Lse, Found, Choice, Logit, Lead, LseT,
    rows_all, parts, tiles, vocabulary, asked, top,
    LISTS: tl.constexpr, TILES: tl.constexpr, TOP: tl.constexpr, ASKED: tl.constexpr, DRAWS: tl.constexpr,
    PURPOSES: tl.constexpr, PATHS: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Join the parts of one row; grid (rows, 2 with a choice, which the second program makes, else 1)."""
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if tl.program_id(1) == 0:
        group = tl.arange(0, 2 * TOP if TOP > 1 else 4)
        tl.store(Borders + row * (TOP + RACERS) + group, NO_ORDER, mask=group < TOP + RACERS)
        highest = _store_top(PartKeys, Values, Ids, Map, row, parts, top, LISTS, TOP, MAPPED)
        tempered = highest
        if DRAWS:
            drawn, divisor = _temper(Temperatures, row)
            tempered = tl.where(drawn, 1.0 / divisor, float("nan"))
        store_lse(PartSums, Lse, LseT, row, rows_all, tiles, highest, tempered, TILES, DRAWS)
        if ASKED > 0:
            _store_absent(At, Found, row, asked, vocabulary, ASKED)
    elif DRAWS:
        drawn, divisor = _temper(Temperatures, row)
        highest = _highest(PartSums, row, tiles, TILES)
        draw = load_draw(Positions, Purposes, Paths, Keys, row, PURPOSES, PATHS)
        store_choice(
            PartPicks, PartLogits, Choice, Logit, Lead, Map, row, tiles, highest, divisor, drawn, draw,
            2 * TILES, MAPPED,
        )  # fmt: skip
