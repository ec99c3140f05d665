"""A device round's record as its launches write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.engine.device.record import Field, tensors_of
from dflash.kernels.round_draft import DraftColumns
from dflash.kernels.round_finish import RoundEnd
from dflash.kernels.round_inputs import RoundStart
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_slots import SlotColumns


class Moves(NamedTuple):
    """Where accepted rows belong, of the round that runs; shaped as in `RoundEnd`."""

    rows: Tensor
    positions: Tensor
    places: Tensor

    @classmethod
    def make(cls, lanes: int, tree: RoundTree, device: torch.device) -> Moves:
        """Allocate."""
        kept = tree.length + 1
        ints = torch.zeros((3, lanes, kept), dtype=torch.int32, device=device)
        rows = torch.zeros((lanes, kept), dtype=torch.int64, device=device)
        return cls(rows, ints[0], ints[1:].view(lanes, kept, 2))


class RoundViews(NamedTuple):
    """Parts of one record."""

    times: Tensor
    start: RoundStart
    drafted: DraftColumns
    """Its `rows` are to be replaced by what the target reads."""
    confidence: Tensor
    slots: SlotColumns
    end: RoundEnd
    prints: Tensor | None
    """`[lanes x kept, 16]`."""
    packed: Tensor | None
    """int64 `[2]`."""

    @classmethod
    def of(cls, record: Tensor, fields: Mapping[str, Field], moves: Moves) -> RoundViews:
        """Take a record `[words]` apart; confidences that nobody writes are NaN."""
        view = tensors_of(record, fields)
        view["confidence"].fill_(torch.nan)

        def parts(names: str) -> list[Tensor]:
            return [view[name] for name in names.split()]

        drafted = parts("node_token node_rank log_q draft_gap margin draft_lse draft_ids draft_logits")
        slots = parts("slot_ids slot_logits choice choice_logit gap lse lse_p entropy")
        slots += parts("node_logit node_mass draft_target")
        prints = view.get("fingerprint")
        return cls(
            view["times"],
            RoundStart(*parts("live length anchor")),
            DraftColumns(*drafted, view["node_token"]),
            view["confidence"],
            SlotColumns(*slots),
            RoundEnd(*parts("count path bonus emitted reason"), *moves),
            None if prints is None else prints.flatten(0, 1),
            view.get("packed"),
        )
