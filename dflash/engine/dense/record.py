"""The record of a group of anchors: a live round's, and what was said of the trunk's own tokens."""

from __future__ import annotations

import torch

from dflash.engine.device.record import Field, RecordSizes, record_fields
from dflash.kernels.round_lanes import RoundTree


def dense_fields(sizes: RecordSizes, tree: RoundTree, drawn: bool) -> dict[str, Field]:
    """Fields of a group's record, in order; what the drafter saw behind the trunk's tokens if it draws."""
    fields = record_fields(sizes, tree)
    fields["trunk_logit"] = Field(torch.float32, (sizes.lanes, 1))
    if not drawn:
        return fields
    seen = (sizes.lanes, tree.length, sizes.draft_top)
    return fields | {"forced_ids": Field(torch.int32, seen), "forced_logits": Field(torch.float32, seen)}
