"""One level of every lane's drafted tree: logits, with a low-rank bias by the token before, and the draw."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import DtypeRefused, ShapeRefused
from dflash.kernels.lm_head_call import Draw
from dflash.kernels.lm_head_reference import log_exponentials, ranked
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import BLOCK, MAX_TOP, cells_of, check_logits
from dflash.kernels.tensor_checks import check_dense

MAX_RANK = 128


class LowRank(NamedTuple):
    """A bias of a slot's logits by the token before it: `factor` times that token's row of `table`."""

    table: Tensor
    """`[tokens, rank]`."""
    factor: Tensor
    """`[draft vocabulary, rank]`."""


class DraftLaw(NamedTuple):
    """How q is made of logits; the temperature is the lane's."""

    top_k: int = 0
    """0 for all that the columns hold, which only lanes at draft temperature 0 may ask for."""
    top_p: float = 1.0


class DraftColumns(NamedTuple):
    """Where drafted nodes and what the drafter saw go."""

    tokens: Tensor
    """int32 `[lanes, nodes]`; -1 for a node that could not be drawn."""
    ranks: Tensor
    """int32 `[lanes, nodes]`: of the token in q."""
    log_q: Tensor
    """float32 `[lanes, nodes]`: given that earlier siblings are out; 0 at draft temperature 0."""
    gaps: Tensor
    """float32 `[lanes, nodes]`: lead over the best that was left out; NaN if nothing was."""
    margins: Tensor
    """float32 `[lanes, nodes]`: the slot's largest logit less the second."""
    lse: Tensor
    """float32 `[lanes, expanded]`: log-sum-exp of the logits."""
    ids: Tensor
    """int32 `[lanes, expanded, top]`: the largest logits' tokens."""
    logits: Tensor
    """float32 `[lanes, expanded, top]`."""
    rows: Tensor
    """int32 `[lanes, rows]`, what the target reads: row i + 1 gets node i's token, 0 for none."""


class DraftScratch(NamedTuple):
    """Memory between the tiles of the vocabulary and their merge."""

    biased: Tensor
    """float32 `[rows, vocabulary]`: logits with the bias by the token before, where there is one."""
    orders: Tensor
    """int32 `[rows, cells]`: the largest logit of each cell."""
    sums: Tensor
    """float32 `[2, rows, parts]`: largest logits and sums of exponentials, by cell with a bias or by tile."""

    @classmethod
    def make(cls, rows: int, vocabulary: int, biased: bool, device: torch.device) -> DraftScratch:
        """Allocate for so many rows of logits."""
        cells, tiles = cells_of(vocabulary), -(-vocabulary // BLOCK)
        return cls(
            torch.empty((rows, vocabulary if biased else 1), device=device),
            torch.empty((rows, cells), dtype=torch.int32, device=device),
            torch.empty((2, rows, cells if biased else tiles), device=device),
        )  # fmt: skip


def draft_level(
    logits: Tensor,
    depth: int,
    bias: LowRank | None,
    law: DraftLaw,
    tree: RoundTree,
    lanes: RoundLanes,
    out: DraftColumns,
    *,
    ids: Tensor | None = None,
    scratch: DraftScratch | None = None,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Draw the nodes at one depth: the best of a race on the target's noise at their position.

    Siblings are drawn without replacement (`dflash/drafters/race.py`): the best B of log q - log E, in
    float64 but for the noise, ties to the lowest id; at draft temperature 0 the largest logits.

    Args:
        logits: `[lanes, slots, draft vocabulary]`; slot `depth` - 1 is read.
        depth: 1 under the anchor.
        bias: None for none.
        law: of all lanes.
        tree: every lane's, drawn down to `depth` - 1 in `out`.
        lanes: anchors, draft temperatures, keys and lengths are read.
        out: where to write.
        ids: int32 `[draft vocabulary]`, the target's ids of a draft vocabulary, ascending; None where they
            are the same.
        scratch: to share between calls on one stream; allocated if None.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    check_level(logits, depth, bias, law, tree, lanes, out, ids)
    if impl == "reference":
        _reference(logits[:, depth - 1], depth, bias, law, tree, lanes, out, ids)
        return
    require_device("logits", logits)
    from dflash.kernels.round_draft_triton import launch_level

    most = len(lanes.lengths) * tree.branches
    held = scratch or DraftScratch.make(most, logits.shape[2], bias is not None, logits.device)
    launch_level(logits, depth, bias, law, tree, lanes, out, ids, held, pdl and not interpreted())


def check_level(
    logits: Tensor, depth: int, bias: LowRank | None, law: DraftLaw, tree: RoundTree, lanes: RoundLanes,
    out: DraftColumns, ids: Tensor | None,
) -> None:  # fmt: skip
    """Refuse what does not fit together, before a launch."""
    count, top = len(lanes.lengths), out.ids.shape[-1]
    check_logits("logits", logits, count, packed=False)
    if not 1 <= depth <= min(tree.length, logits.shape[1]):
        raise ShapeRefused("depth", f"1 to {min(tree.length, logits.shape[1])}", depth)
    if not 2 <= top <= min(MAX_TOP, logits.shape[2]) or law.top_k > top:
        raise ShapeRefused("out.ids", f"2 to {MAX_TOP} tokens a slot, all of q", (top, law.top_k))
    for name in ("tokens", "ranks"):
        check_dense(f"out.{name}", getattr(out, name), torch.int32, (count, tree.nodes), logits)
    for name in ("log_q", "gaps", "margins"):
        check_dense(f"out.{name}", getattr(out, name), torch.float32, (count, tree.nodes), logits)
    check_dense("out.lse", out.lse, torch.float32, (count, tree.expanded), logits)
    check_dense("out.ids", out.ids, torch.int32, (count, tree.expanded, top), logits)
    check_dense("out.logits", out.logits, torch.float32, (count, tree.expanded, top), logits)
    check_dense("out.rows", out.rows, torch.int32, (count, out.rows.shape[-1]), logits)
    if ids is not None:
        check_dense("ids", ids, torch.int32, (logits.shape[2],), logits)
    if bias is not None:
        rank = bias.table.shape[-1]
        if not 1 <= rank <= MAX_RANK:
            raise ShapeRefused("bias.table", f"[tokens, 1 to {MAX_RANK}]", bias.table.shape)
        if bias.factor.dtype != bias.table.dtype:
            raise DtypeRefused("bias.factor", str(bias.table.dtype), bias.factor.dtype, bias.factor.shape)
        check_dense("bias.factor", bias.factor, bias.table.dtype, (logits.shape[2], rank), logits)


def _before(depth: int, tree: RoundTree, lanes: RoundLanes, out: DraftColumns) -> Tensor:
    """Tokens `[lanes, parents]` that the level hangs on."""
    if depth == 1:
        return lanes.anchors[:, None]
    first = (depth - 2) * tree.branches
    return out.tokens[:, first : first + tree.branches]


def _reference(
    slot: Tensor, depth: int, bias: LowRank | None, law: DraftLaw, tree: RoundTree, lanes: RoundLanes,
    out: DraftColumns, ids: Tensor | None,
) -> None:  # fmt: skip
    before = _before(depth, tree, lanes, out)
    logits = slot.float()[:, None].expand(-1, before.shape[1], -1)
    if bias is not None:
        mixed = bias.table[before.clamp_min(0).long()].float()
        logits = logits + mixed @ bias.factor.float().T
    best = ranked(logits.flatten(0, 1), out.ids.shape[2])
    values, order = (part.unflatten(0, before.shape) for part in best)
    tokens = order.int() if ids is None else ids[order]
    first = 0 if depth == 1 else 1 + (depth - 2) * tree.branches
    here = slice(first, first + before.shape[1])
    out.lse[:, here], out.ids[:, here], out.logits[:, here] = logits.logsumexp(-1), tokens, values
    score, log_q = _scores(values, tokens, depth, law, lanes)
    rank = torch.arange(values.shape[2], device=values.device).expand_as(tokens)
    # the stable sort by score keeps ids ascending among equals
    by_id = tokens.argsort(-1)
    best = torch.sort(score.gather(-1, by_id), dim=-1, descending=True, stable=True).indices
    rank = rank.gather(-1, by_id).gather(-1, best)
    count = tree.branches if depth == 1 else 1
    _store(rank, count, depth, before, score, log_q, tokens, values, tree, lanes, out)


def _scores(
    values: Tensor, tokens: Tensor, depth: int, law: DraftLaw, lanes: RoundLanes
) -> tuple[Tensor, Tensor]:
    """Scores of the race and log q of a level's candidates, -inf where nothing can be drawn."""
    drawn = (lanes.draft_temperatures > 0)[:, None, None]
    allowed = values.isfinite()
    if law.top_k:
        allowed = allowed & (torch.arange(values.shape[2], device=values.device) < law.top_k)
    raw = torch.where(allowed, values.double(), -torch.inf)
    temperature = torch.where(drawn, lanes.draft_temperatures[:, None, None].double(), 1.0)
    log_q = (raw / temperature).log_softmax(-1)
    if law.top_p < 1.0:
        kept = (log_q.exp().cumsum(-1) < law.top_p).sum(-1, keepdim=True)
        outside = torch.arange(values.shape[2], device=values.device) > kept
        log_q = log_q.masked_fill(outside, -torch.inf).log_softmax(-1)
    rows = torch.arange(len(values), device=values.device).repeat_interleave(values.shape[1])
    positions = (lanes.lengths + depth)[rows].int()
    noise = []
    for row, (position, wanted) in enumerate(zip(positions, tokens.flatten(0, 1), strict=True)):
        draw = Draw(lanes.draft_temperatures[:1], lanes.keys[rows[row]][None], position[None])
        noise.append(log_exponentials(draw, wanted)[0])
    raced = log_q - torch.stack(noise).view(values.shape).double()
    return torch.where(drawn, raced.masked_fill(log_q == -torch.inf, -torch.inf), raw), log_q


def _store(
    rank: Tensor, count: int, depth: int, before: Tensor, score: Tensor, log_q: Tensor, tokens: Tensor,
    values: Tensor, tree: RoundTree, lanes: RoundLanes, out: DraftColumns,
) -> None:  # fmt: skip
    score = score.gather(-1, rank)
    q = log_q.exp()
    for place in range(count):
        winner = rank[..., place]
        real = (score[..., place] > -torch.inf) & (before >= 0)
        first = (depth - 1) * tree.branches + (place if depth == 1 else 0)
        here = slice(first, first + before.shape[1])
        own = log_q.gather(-1, winner[..., None])[..., 0]
        over = score[..., count] if count < score.shape[-1] else torch.full_like(own, -torch.inf)
        left = q.sum(-1).log() if place else torch.zeros_like(own)
        gap = torch.where(real & (over > -torch.inf), score[..., place] - over, torch.nan)
        token = torch.where(real, tokens.gather(-1, winner[..., None])[..., 0], -1)
        drawn = (lanes.draft_temperatures > 0)[:, None]
        out.tokens[:, here], out.ranks[:, here] = token, winner.int()
        out.log_q[:, here] = torch.where(drawn & real, (own - left).clamp_max(0.0), 0.0).float()
        out.gaps[:, here], out.margins[:, here] = gap.float(), values[..., 0] - values[..., 1]
        out.rows[:, first + 1 : first + 1 + before.shape[1]] = token.clamp_min(0)
        q = q.scatter(-1, winner[..., None], 0.0)
