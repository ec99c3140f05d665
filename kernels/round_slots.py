"""What a draft file keeps of the target's logits, slot by slot, for all lanes' trees without the host."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import DtypeRefused, LayoutRefused, ShapeRefused
from dflash.kernels.lm_head_call import Draw
from dflash.kernels.lm_head_reference import choose, ranked
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.tensor_checks import check_dense

MAX_TOP = 32
BLOCK = 1024
# tokens of which a tile leaves the largest logit only
CELL = 64
MAX_CELLS = 4096
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class SlotColumns(NamedTuple):
    """Where the numbers go; `slots` is nodes + 1."""

    ids: Tensor
    """int32 `[lanes, slots, top]`: the largest logits' tokens, ties by the lowest id."""
    logits: Tensor
    """float32 `[lanes, slots, top]`."""
    choice: Tensor
    """int32 `[lanes, slots]`: who wins the race on the request's noise; the argmax at temperature 0."""
    choice_logit: Tensor
    """float32 `[lanes, slots]`."""
    gap: Tensor
    """float32 `[lanes, slots]`: by how much it won."""
    lse: Tensor
    """float32 `[lanes, slots]`: log-sum-exp of the logits."""
    lse_p: Tensor
    """float32 `[lanes, slots]`: of logits / T; NaN at temperature 0."""
    entropy: Tensor
    """float32 `[lanes, slots]`: of softmax(l / T), of softmax(l) at temperature 0."""
    node_logit: Tensor
    """float32 `[lanes, nodes]`: the node's logit at its parent's slot; NaN for a node that is not there."""
    node_mass: Tensor
    """float32 `[lanes, nodes]`: mass of likelier tokens there."""
    asked: Tensor
    """float32 `[lanes, expanded, asked]`: logits of given tokens at the first slots."""


class SlotScratch(NamedTuple):
    """Memory between the tiles of the vocabulary and their merge."""

    orders: Tensor
    """int32 `[rows, cells]`: the largest logit of each cell."""
    sums: Tensor
    picks: Tensor
    pick_logits: Tensor
    masses: Tensor

    @classmethod
    def make(cls, rows: int, vocabulary: int, kids: int, device: torch.device) -> SlotScratch:
        """Allocate for so many rows of logits."""
        tiles = -(-vocabulary // BLOCK)

        def room(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            room(rows, cells_of(vocabulary), dtype=torch.int32), room(4, rows, tiles),
            room(rows, tiles, 2, dtype=torch.int64), room(rows, tiles, 2), room(max(kids, 1), rows, tiles),
        )  # fmt: skip


def power(count: int) -> int:
    """The next power of two, at least 2."""
    return max(2, 1 << (count - 1).bit_length())


def cell_of(vocabulary: int) -> int:
    """Tokens a cell: `CELL`, or as many more as leave `MAX_CELLS` cells of whole tiles."""
    tiles, cell = -(-vocabulary // BLOCK), CELL
    while tiles * BLOCK > MAX_CELLS * cell and 2 * cell < BLOCK:
        cell *= 2
    return cell


def cells_of(vocabulary: int) -> int:
    """Cells a row, those of whole tiles."""
    return -(-vocabulary // BLOCK) * BLOCK // cell_of(vocabulary)


def row_stride(logits: Tensor) -> int:
    """Numbers between rows of `[lanes, rows, vocabulary]`; a dimension of one row may have any stride."""
    return logits.stride(1) if logits.shape[1] > 1 else logits.stride(0)


def check_logits(name: str, logits: Tensor, lanes: int, *, packed: bool = True) -> None:
    """Refuse logits that are not `[lanes, rows, vocabulary]` with vocabularies in one piece.

    Args:
        packed: whether the rows of all lanes must be at one distance.
    """
    if logits.dim() != 3 or logits.shape[0] != lanes:
        raise ShapeRefused(name, f"[{lanes} lanes, rows, vocabulary]", logits.shape)
    if logits.dtype not in _FLOATS:
        raise DtypeRefused(name, "bfloat16, float16 or float32", logits.dtype, logits.shape)
    even = not packed or lanes == 1 or logits.stride(0) == logits.shape[1] * row_stride(logits)
    if logits.stride(2) != 1 or not even:
        raise LayoutRefused(name, "rows at one distance", logits.stride(), logits.shape)


def target_slots(
    logits: Tensor,
    tokens: Tensor,
    asked: Tensor,
    tree: RoundTree,
    lanes: RoundLanes,
    out: SlotColumns,
    *,
    scratch: SlotScratch | None = None,
    impl: Impl = "triton",
    pdl: bool = True,
) -> SlotColumns:
    """Judge the logits of the anchors and nodes of all lanes, in float32.

    Choices are those of `lm_head_topk`: the largest (l - max l) / T - log E on the request's noise at the
    token's position (Gumbel-max, Daliri et al. 2408.07978).

    Args:
        logits: `[lanes, rows, vocabulary]`; row i is slot i, rows behind the tree are not read.
        tokens: int32 `[lanes, nodes]`, -1 for a node that is not there.
        asked: int32 `[lanes, expanded, wanted]`, tokens whose logits are wanted, all inside the vocabulary.
        tree: of every lane.
        lanes: temperatures, keys and lengths are read.
        out: where to write.
        scratch: to share between calls on one stream; allocated if None.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Returns:
        `out`.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    _check(logits, tokens, asked, tree, lanes, out)
    if impl == "reference":
        return _reference(logits, tokens, asked, tree, lanes, out)
    require_device("logits", logits)
    from dflash.kernels.round_slots_triton import launch_slots

    rows, kids = out.choice.numel(), tree.children.shape[1] if tree.nodes else 0
    held = scratch or SlotScratch.make(rows, logits.shape[2], kids, logits.device)
    launch_slots(logits, tokens, asked, tree, lanes, out, held, kids, pdl and not interpreted())
    return out


def _check(
    logits: Tensor, tokens: Tensor, asked: Tensor, tree: RoundTree, lanes: RoundLanes, out: SlotColumns
) -> None:
    count, nodes = len(lanes.lengths), tree.nodes
    check_logits("logits", logits, count)
    if logits.shape[1] < nodes + 1:
        raise ShapeRefused("logits", f"{nodes + 1} rows or more a lane", logits.shape)
    check_dense("tokens", tokens, torch.int32, (count, nodes), logits)
    check_dense("asked", asked, torch.int32, (count, tree.expanded, asked.shape[-1]), logits)
    if not 2 <= out.ids.shape[2] <= min(MAX_TOP, logits.shape[2]):
        raise ShapeRefused("out.ids", f"2 to {MAX_TOP} tokens a slot", out.ids.shape)
    slots = (count, nodes + 1)
    check_dense("out.ids", out.ids, torch.int32, (*slots, out.ids.shape[2]), logits)
    check_dense("out.logits", out.logits, torch.float32, tuple(out.ids.shape), logits)
    check_dense("out.choice", out.choice, torch.int32, slots, logits)
    for name in ("choice_logit", "gap", "lse", "lse_p", "entropy"):
        check_dense(f"out.{name}", getattr(out, name), torch.float32, slots, logits)
    for name in ("node_logit", "node_mass"):
        check_dense(f"out.{name}", getattr(out, name), torch.float32, (count, nodes), logits)
    check_dense("out.asked", out.asked, torch.float32, tuple(asked.shape), logits)


def _reference(
    logits: Tensor, tokens: Tensor, asked: Tensor, tree: RoundTree, lanes: RoundLanes, out: SlotColumns
) -> SlotColumns:
    slots, top = tree.nodes + 1, out.ids.shape[2]
    raw = logits[:, :slots].float().flatten(0, 1)
    temperatures = lanes.temperatures.repeat_interleave(slots)
    positions = (lanes.lengths[:, None] + 1 + tree.depths).flatten().int()
    draw = Draw(temperatures, lanes.keys.repeat_interleave(slots, 0), positions)
    values, order = ranked(raw, top)
    choice = choose(raw, torch.arange(raw.shape[1], device=raw.device), draw)
    centred = (raw - values[:, :1]) / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    weight = centred.exp()
    total = weight.sum(-1).double()
    entropy = total.log() - (weight * centred.clamp_min(-1e4)).sum(-1).double() / total
    found = (order, values, choice.token, choice.logit, choice.lead)
    found += (raw.logsumexp(-1), choice.lse, entropy)
    for goal, column in zip(out[:8], found, strict=True):
        goal.copy_(column.view(goal.shape))
    if tree.nodes:
        shape = (len(logits), slots, -1)
        _nodes(raw.view(shape), (weight / total[:, None]).view(shape), tokens, tree, out)
        out.asked.copy_(logits[:, : tree.expanded].float().gather(2, asked.long()))
    return out


def _nodes(raw: Tensor, p: Tensor, tokens: Tensor, tree: RoundTree, out: SlotColumns) -> None:
    """Logits of nodes at their parents' slots, and the masses above them."""
    above = (tree.parents + 1).long()[..., None].expand(-1, -1, raw.shape[2])
    raw, p = raw.gather(1, above), p.gather(1, above)
    logit = raw.gather(2, tokens.clamp_min(0).long()[..., None])
    mass = torch.where(raw > logit, p, 0.0).sum(-1).clamp_max(1.0)
    out.node_logit.copy_(torch.where(tokens >= 0, logit[..., 0], torch.nan))
    out.node_mass.copy_(torch.where(tokens >= 0, mass, torch.nan))
