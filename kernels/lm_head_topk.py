"""K4: the output head with what a round needs of its logits, which never are in memory.

Argmax, top-k, log-sum-exp, logits at given ids, and the token that wins the race on the run's noise.
"""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice
from dflash.kernels.attention_plan import Mode
from dflash.kernels.errors import DraftIdsRefused
from dflash.kernels.lm_head_call import Draw, HeadScores, check_head
from dflash.kernels.lm_head_plan import HeadTile, head_plan
from dflash.kernels.lm_head_reference import reference_head
from dflash.kernels.lm_head_scratch import HeadScratch, fitting_head_scratch, make_head_scratch
from dflash.kernels.row_norm import CarriedNorm, check_norm, normed


def check_draft_ids(ids: Tensor, vocabulary: int) -> None:
    """Refuse a draft vocabulary that is not strictly ascending, by which ties would not go to the lowest id.

    Reads the values on the host: call it once, when a head is loaded.

    Args:
        ids: integer `[draft vocabulary]`, the target's id of each row of the head.
        vocabulary: of the target.

    Raises:
        DraftIdsRefused: names the first row out of place.
    """
    values = ids.detach().cpu().long()
    wrong = (values < 0) | (values >= vocabulary)
    wrong[1:] |= values[1:] <= values[:-1]
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DraftIdsRefused(row, int(values[row]), vocabulary, ids.shape)


def _copy(out: HeadScores, found: HeadScores) -> HeadScores:
    pairs = zip((*out[:4], *(out.choice or ())), (*found[:4], *(found.choice or ())), strict=True)
    for mine, theirs in pairs:
        if mine is not None and theirs is not None:
            mine.copy_(theirs)
    return out


def lm_head_topk(
    hidden: Tensor,
    weight: Tensor,
    top: int,
    *,
    ids: Tensor | None = None,
    asked: Tensor | None = None,
    draw: Draw | None = None,
    scale: float = 1.0,
    norm: CarriedNorm | None = None,
    eps: float = 1e-6,
    mode: Mode = "fast",
    impl: Impl = "triton",
    out: HeadScores | None = None,
    scratch: HeadScratch | None = None,
    tile: HeadTile | None = None,
    pdl: bool = True,
) -> HeadScores:
    """Score rows of hidden states against every token; logits are float32 sums of products.

    The choice is that of the CPU: the largest (l - max l) / T - log E in float32, on the noise of
    `dflash.policy.noise`, ties to the lowest id (Gumbel-max on shared noise, Daliri et al. 2408.07978).
    Infinities are values like others; NaN is the largest value, as in `torch.topk`, and makes the
    log-sum-exp NaN.

    Args:
        hidden: `[rows, width]`, in the dtype of the head; width a multiple of 16.
        weight: `[vocabulary, width]`, float16, bfloat16 or float32 (in the interpreter not bfloat16).
        top: largest logits wanted, 1 to 32.
        ids: int32 `[vocabulary]`, the target's ids of a draft vocabulary, ascending (`check_draft_ids`):
            tokens that come out and noise go by them.
        asked: int32 `[rows, up to 64]`, rows of the head whose logits are wanted.
        draw: what the choice races on; None chooses nothing.
        scale: of the logits, positive.
        norm: the RMSNorm before the head, of `eps`, as the launch that made `hidden` left it (`row_product`).
        mode: `fast`, or `replay-exact`: a row's bits are the same whatever the other rows are.
        impl: `triton`, or the PyTorch `reference`, which holds all logits; never a silent fallback.
        out: where to write.
        scratch: from `head_scratch`, to share between calls on one stream; allocated if None.
        tile: another configuration than the table's.
        pdl: start under the preceding kernel's tail.

    Returns:
        Top-k, log-sum-exp, and what was asked for.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_choice("mode", Mode, mode)
    room = check_head(hidden, weight, top, ids, asked, draw, scale, impl, out)
    check_norm(hidden, norm, eps)
    if impl == "reference":
        rows = normed(hidden, norm, eps)
        return _copy(room, reference_head(rows, weight, top, ids, asked, draw, scale))
    from dflash.kernels.lm_head_launch import launch_head

    plan = head_plan(len(hidden), len(weight), weight.element_size(), top, mode, tile)
    held = fitting_head_scratch(scratch, hidden, plan)
    launch_head(hidden, weight, ids, asked, draw, scale, norm, eps, plan, held, room, pdl)
    return room


def head_scratch(
    hidden: Tensor,
    weight: Tensor,
    top: int,
    *,
    mode: Mode = "fast",
    tile: HeadTile | None = None,
) -> HeadScratch:
    """Allocate scratch memory once for the calls of one shape."""
    check_choice("mode", Mode, mode)
    plan = head_plan(len(hidden), len(weight), weight.element_size(), top, mode, tile)
    return make_head_scratch(hidden, plan)
