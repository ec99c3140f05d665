"""The head of a block drafter on the fused kernel: best tokens and draws of its slots, without logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dflash.drafters.block.model import BlockDrafter
from dflash.kernels.lm_head_call import Draw, HeadScores
from dflash.kernels.lm_head_topk import check_draft_ids, lm_head_topk
from dflash.target.errors import NativeUnsupported


def _misfits(model: BlockDrafter, head: Any) -> Iterator[str]:
    if model.markov_head is not None:
        yield "the Markov head changes the logits of a slot by the token before it"
    if model.config.softcap is not None:
        yield "its logits are soft-capped"
    if not isinstance(head, nn.Linear):
        yield f"its output head is a {type(head).__name__}, not a Linear"
        return
    if head.bias is not None:
        yield "its output head has a bias"
    if type(head.weight.data) is not Tensor:
        yield "its output head is quantised"
    if head.weight.shape[1] % 16:
        yield f"its hidden size {head.weight.shape[1]} is no multiple of 16"


@dataclass(frozen=True, slots=True)
class DraftHead:
    """An output head as the kernel reads it.

    Attributes:
        weight: `[draft vocabulary, hidden]`, rows in the order of the target's ids.
        ids: int32 `[draft vocabulary]`, those ids; None where the head has a row a token.
        scale: of the logits.
    """

    weight: Tensor
    ids: Tensor | None
    scale: float

    @classmethod
    def of(cls, name: str, model: BlockDrafter) -> DraftHead:
        """Take a drafter's head, its own or the one it borrows; a copy is made only to sort its rows.

        Raises:
            NativeUnsupported: lists everything that does not fit.
            DraftIdsRefused: two rows of the head stand for one token.
        """
        head = model.output_head
        reasons = list(_misfits(model, head))
        if reasons:
            raise NativeUnsupported(name, reasons)
        weight = head.weight.data
        if model.config.draft_vocabulary is None:
            return cls(weight, None, model.config.logit_scale)
        ids, order = model.draft_ids.sort()
        check_draft_ids(ids, model.config.vocabulary)
        if not torch.equal(ids, model.draft_ids):
            weight = weight[order]
        return cls(weight, ids.to(torch.int32), model.config.logit_scale)

    def rows_of(self, tokens: Tensor) -> Tensor:
        """Rows of the head, int32 as `tokens` is shaped, -1 where a token can not be drafted."""
        if self.ids is None:
            return tokens.to(torch.int32)
        wanted = tokens.to(torch.int32).contiguous()
        row = torch.searchsorted(self.ids, wanted).clamp_max(len(self.ids) - 1)
        return torch.where(self.ids[row] == wanted, row, -1).to(torch.int32)

    def score(
        self,
        hidden: Tensor,
        top: int,
        *,
        asked: Tensor | None = None,
        draw: Draw | None = None,
        **way: Any,
    ) -> HeadScores:
        """Score hidden rows after the final norm, those of `BlockDrafter.blocks`, without the host.

        A candidate selector reads the unary logits of the best tokens: `values` and `ids`.

        Args:
            hidden: `[rows, hidden]` in the dtype of the head.
            top: largest logits wanted, 1 to 32.
            asked: target ids int32 `[rows, up to 64]` whose logits are wanted; -inf for what is not drafted.
            draw: what each row's choice races on; `shared` proposals leave `purposes` and `paths` out.
            way: `mode`, `impl`, `out`, `scratch`, `tile` and `pdl` of `lm_head_topk`.

        Raises:
            KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
        """
        wanted = None if asked is None else self.rows_of(asked)
        return lm_head_topk(
            hidden, self.weight, top, ids=self.ids, asked=wanted, draw=draw, scale=self.scale, **way
        )
