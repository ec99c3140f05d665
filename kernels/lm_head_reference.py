"""The head, its statistics and its choice in PyTorch: the specification of `lm_head_topk`."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.lm_head_call import Choices, Draw, HeadScores
from dflash.kernels.philox import philox_words

_MASK = 0xFFFFFFFF


def log_exponentials(draw: Draw, ids: Tensor) -> Tensor:
    """log E `[rows, vocabulary]` in float32 of the tokens `ids` `[vocabulary]`, as dflash/policy/noise.py."""
    grid = torch.zeros((len(draw.positions), len(ids)), dtype=torch.int64, device=ids.device)

    def column(words: Tensor | None) -> Tensor:
        return grid if words is None else grid + (words.long() & _MASK)[:, None]

    counters = [column(draw.positions), column(draw.purposes), column(draw.paths), grid + ids.long() // 4]
    words = philox_words(counters, [column(draw.keys[:, i]) for i in range(2)])
    word = torch.stack(words, -1).gather(-1, (grid + ids.long() % 4)[..., None])[..., 0]
    uniform = ((word.double() + 0.5) * 2.0**-32).float().double()
    return (-torch.log1p(-uniform)).log().float()


def ranked(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of each row and their indices, NaN above all, ties to the lowest index."""
    found, order = torch.sort(values, dim=-1, descending=True, stable=True)
    return found[:, :count], order[:, :count]


def choose(logits: Tensor, ids: Tensor, draw: Draw) -> Choices:
    """Race logits `[rows, vocabulary]` of tokens `ids` `[vocabulary]` on the noise of `draw`."""
    drawn = draw.temperatures > 0
    divisor = torch.where(drawn, draw.temperatures, 1.0)[:, None].to(logits.dtype)
    noise = torch.where(drawn[:, None], log_exponentials(draw, ids), 0.0)
    highest = ranked(logits, 1)[0].nan_to_num(0.0, torch.inf, -torch.inf)
    best, order = ranked((logits - highest) / divisor - noise, min(2, logits.shape[1]))
    lead = best[:, 0] - best[:, 1] if best.shape[1] == 2 else torch.full_like(best[:, 0], torch.inf)
    lse = torch.where(drawn, torch.logsumexp(logits / divisor, -1), torch.nan)
    chosen = logits.gather(1, order[:, :1])[:, 0]
    return Choices(ids[order[:, 0]].int(), chosen.float(), lead.float(), lse.float())


def reference_head(
    hidden: Tensor,
    weight: Tensor,
    top: int,
    ids: Tensor | None,
    asked: Tensor | None,
    draw: Draw | None,
    scale: float,
) -> HeadScores:
    """Score with all logits in memory, in float32 (float64 for float64 weights)."""
    work = torch.float64 if weight.dtype == torch.float64 else torch.float32
    logits = hidden.to(work) @ weight.to(work).T * scale
    tokens = torch.arange(len(weight), device=weight.device, dtype=torch.int32) if ids is None else ids
    values, order = ranked(logits, top)
    found = None
    if asked is not None:
        inside = (asked >= 0) & (asked < len(weight))
        found = logits.gather(1, torch.where(inside, asked, 0).long())
        found = found.masked_fill(~inside, -torch.inf).float()
    choice = None if draw is None else choose(logits, tokens, draw)
    return HeadScores(values.float(), tokens[order].int(), torch.logsumexp(logits, -1).float(), found, choice)
