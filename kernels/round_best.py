"""All levels of every lane's drafted tree where nothing is drawn: the likeliest token under each node."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.round_draft import DraftColumns, DraftLaw, DraftScratch, LowRank, check_level, draft_level
from dflash.kernels.round_lanes import RoundLanes, RoundTree

BLOCK = 512


class BestScratch(NamedTuple):
    """Memory between the tiles of the vocabulary and what reads them; a call leaves `leads` as they were."""

    parts: DraftScratch
    leads: Tensor
    """int64 `[lanes x expanded]`: the best key of a slot while its level runs, else the least there is."""
    rooted: Tensor
    """int32 `[lanes x expanded]`: 1 if all that a slot's node hangs on could be drafted."""

    @classmethod
    def make(cls, rows: int, vocabulary: int, biased: bool, device: torch.device) -> BestScratch:
        """Allocate for so many expanded slots of all lanes."""
        least = torch.iinfo(torch.int64).min
        leads = torch.full((rows,), least, dtype=torch.int64, device=device)
        rooted = torch.empty((rows,), dtype=torch.int32, device=device)
        return cls(DraftScratch.make(rows, vocabulary, biased, device), leads, rooted)


def draft_best(
    logits: Tensor,
    bias: LowRank | None,
    law: DraftLaw,
    tree: RoundTree,
    lanes: RoundLanes,
    out: DraftColumns,
    *,
    ids: Tensor | None = None,
    first: int = 1,
    scratch: BestScratch | None = None,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Do what `draft_level` does from depth `first` on, for lanes at draft temperature 0.

    What the next token depends on is a launch a depth; all that is kept of the logits is made of all depths
    at once.

    Args:
        logits: `[lanes, slots, draft vocabulary]`; slot d - 1 is read for depth d.
        bias: None for none.
        law: of all lanes.
        tree: every lane's; one that branches is drawn at depth 1 by `draft_level`.
        lanes: anchors are read; draft temperatures are taken to be 0.
        out: where to write.
        ids: int32 `[draft vocabulary]`, the target's ids of a draft vocabulary, ascending; None where they
            are the same.
        first: depth to begin with: 1, or 2.
        scratch: to share between calls on one stream; allocated if None.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    for depth in {first, tree.length}:
        check_level(logits, depth, bias, law, tree, lanes, out, ids)
    if first not in (1, 2) or (first == 1 and tree.branches > 1):
        raise ShapeRefused("first", "2, or 1 for a chain", first)
    if impl == "reference":
        still = lanes._replace(draft_temperatures=torch.zeros_like(lanes.draft_temperatures))
        for depth in range(first, tree.length + 1):
            draft_level(logits, depth, bias, law, tree, still, out, ids=ids, impl=impl)
        return
    require_device("logits", logits)
    from dflash.kernels.round_best_triton import launch_best

    rows = len(lanes.lengths) * tree.expanded
    held = scratch or BestScratch.make(rows, logits.shape[2], bias is not None, logits.device)
    launch_best(logits, bias, law, tree, lanes, out, ids, first, held, pdl and not interpreted())
