"""Compile the kernels of device rounds for sm_90; print what each uses, as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels import (
    round_best_triton,
    round_confidence_triton,
    round_cut_triton,
    round_draft_triton,
    round_finish_triton,
    round_inputs_triton,
    round_prints_triton,
    round_rows_triton,
    round_slots_triton,
    round_stamp_triton,
    round_taps_triton,
)
from dflash.kernels.accept_tree import Accepted
from dflash.kernels.round_best import BestScratch
from dflash.kernels.round_confidence import ConfidenceWeights
from dflash.kernels.round_cut import RoundLimits
from dflash.kernels.round_draft import DraftColumns, DraftLaw, DraftScratch, LowRank
from dflash.kernels.round_finish import RoundEnd
from dflash.kernels.round_inputs import RoundStart, RowInputs
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_rows import RowStores
from dflash.kernels.round_slots import SlotColumns, SlotScratch
from dflash.kernels.round_taps import TapRing
from tests.kernels.ahead_of_time import Recorder, print_compiled

KERNELS = {
    round_slots_triton: ("judge_tiles", "merge_slots"),
    round_draft_triton: ("draft_tiles", "draft_draw"),
    round_best_triton: ("lead_tiles", "kept_tiles", "keep_best"),
    round_inputs_triton: ("place_lane",),
    round_finish_triton: ("finish_lane",),
    round_confidence_triton: ("confidence_node",),
    round_prints_triton: ("project_row",),
    round_rows_triton: ("keep_head", "spread_head"),
    round_stamp_triton: ("write_time",),
    round_cut_triton: ("cut_lane",),
    round_taps_triton: ("keep_row",),
}


def compiled(module: Any, call: Callable[[], object]) -> list[object]:
    """What a launch of a module compiles."""
    built: list[object] = []
    kept = {name: getattr(module, name) for name in KERNELS[module]}
    for name, kernel in kept.items():
        setattr(module, name, Recorder(kernel, built))
    try:
        call()
    finally:
        for name, kernel in kept.items():
            setattr(module, name, kernel)
    return built


def ints(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


def slots(tree: RoundTree, lanes: RoundLanes, vocabulary: int) -> list[object]:
    count, n = len(lanes.live), tree.nodes
    floats = [torch.zeros(count, n + 1) for _ in range(5)]
    out = SlotColumns(
        ints(count, n + 1, 16), torch.zeros(count, n + 1, 16), ints(count, n + 1), *floats,
        torch.zeros(count, n), torch.zeros(count, n), torch.zeros(count, tree.expanded, 16),
    )  # fmt: skip
    kids = tree.branches if n else 0
    logits = torch.empty((count, n + 1, vocabulary), dtype=torch.bfloat16)
    scratch = SlotScratch.make(count * (n + 1), vocabulary, kids, torch.device("cpu"))
    arguments = (
        logits,
        ints(count, n),
        ints(count, tree.expanded, 16),
        tree,
        lanes,
        out,
        scratch,
        kids,
        True,
    )
    return compiled(round_slots_triton, lambda: round_slots_triton.launch_slots(*arguments))


def columns(tree: RoundTree, count: int) -> DraftColumns:
    n, e = tree.nodes, tree.expanded
    return DraftColumns(
        ints(count, n), ints(count, n), *(torch.zeros(count, n) for _ in range(3)), torch.zeros(count, e),
        ints(count, e, 16), torch.zeros(count, e, 16), ints(count, n + 1),
    )  # fmt: skip


def biased(tree: RoundTree, count: int, vocabulary: int) -> tuple[torch.Tensor, LowRank]:
    logits = torch.empty((count, tree.length, vocabulary), dtype=torch.bfloat16)
    return logits, LowRank(logits.new_empty(vocabulary, 8), logits.new_empty(vocabulary, 8))


def level(
    tree: RoundTree, lanes: RoundLanes, vocabulary: int, depth: int, law: DraftLaw, mapped: bool = False
) -> list[object]:
    count = len(lanes.live)
    logits, bias = biased(tree, count, vocabulary)
    scratch = DraftScratch.make(count * tree.branches, vocabulary, True, torch.device("cpu"))
    ids = ints(vocabulary) if mapped else None
    arguments = (logits, depth, bias, law, tree, lanes, columns(tree, count), ids, scratch, True)
    return compiled(round_draft_triton, lambda: round_draft_triton.launch_level(*arguments))


def levels(tree: RoundTree, lanes: RoundLanes, vocabulary: int, first: int, alone: bool) -> list[object]:
    count = len(lanes.live)
    logits, bias = biased(tree, count, vocabulary)
    scratch = BestScratch.make(count * tree.expanded, vocabulary, not alone, torch.device("cpu"))
    ids = ints(vocabulary) if first == 2 else None
    given = None if alone else bias
    arguments = (logits, given, DraftLaw(8), tree, lanes, columns(tree, count), ids, first, scratch, True)
    return compiled(round_best_triton, lambda: round_best_triton.launch_best(*arguments))


def course(tree: RoundTree, lanes: RoundLanes) -> list[object]:
    count, kept, n = len(lanes.live), tree.length + 1, tree.nodes
    rows = RowInputs(ints(count, n + 1), ints(count, n + 1), ints(count, n + 1, 2), ints(count))
    start = RoundStart(ints(count), ints(count), ints(count))
    end = RoundEnd(
        ints(count), ints(count, n), ints(count), ints(count), ints(count), torch.zeros(count, kept).long(),
        ints(count, kept), ints(count, kept, 2),
    )  # fmt: skip
    accepted = Accepted(ints(count), ints(count, n), ints(count), ints(count))
    times = torch.zeros(4, dtype=torch.int64)
    stores = RowStores.of([torch.zeros((count, 3, 64, 64), dtype=torch.bfloat16) for _ in range(2)])
    launch = round_inputs_triton.launch_inputs
    built = compiled(round_inputs_triton, lambda: launch(lanes, tree, rows, rows, 3, start, times, True))
    finish = round_finish_triton.launch_finish
    arguments = (ints(count, n), accepted, ints(2), tree, lanes, n + 1, end, times, True)
    built += compiled(round_finish_triton, lambda: finish(*arguments))
    keep = round_rows_triton.launch_keep
    built += compiled(round_rows_triton, lambda: keep(stores, ints(count, n), lanes.lengths, 3, True))
    spread = round_rows_triton.launch_spread
    built += compiled(round_rows_triton, lambda: spread(stores, stores, 1, 40))
    hidden = torch.zeros((count, tree.length, 576), dtype=torch.bfloat16)
    weights = ConfidenceWeights(hidden.new_zeros(584), hidden.new_zeros(1), hidden.new_zeros(4096, 8))
    node = round_confidence_triton.launch_confidences
    facts = (hidden, ints(count, n), weights, tree, lanes, torch.zeros(count, n), True)
    built += compiled(round_confidence_triton, lambda: node(*facts))
    prints = round_prints_triton.launch_prints
    taps, wanted = torch.zeros((99, 2880), dtype=torch.bfloat16), torch.zeros(count * kept).long()
    given = (taps, wanted, ints(2880), 0.1, torch.zeros(count * kept, 16), True)
    built += compiled(round_prints_triton, lambda: prints(*given))
    cut, limits = round_cut_triton.launch_cut, RoundLimits.make(count, "cpu")
    built += compiled(round_cut_triton, lambda: cut(ints(count, n), limits, tree, True))
    ring, tap = TapRing.make(count, 32, taps), round_taps_triton.launch_keep
    built += compiled(round_taps_triton, lambda: tap(taps[: 2 * count], start, ring, True))
    options = {"PDL": True, "num_warps": 1, "launch_pdl": True}
    for asks in (False, True):
        given = (times, 1, ints(1) if asks else times)

        def write(given: tuple[Any, ...] = given, asks: bool = asks) -> None:
            round_stamp_triton.write_time[(1,)](*given, ASKS=asks, **options)

        built += compiled(round_stamp_triton, write)
    return built


def configurations() -> dict[str, list[object]]:
    lanes = RoundLanes.make(8, "cpu")
    chain, tree, plain = (RoundTree.make(*shape, 8, "cpu") for shape in ((7, 1), (7, 4), (0, 1)))
    return {
        "slots chain": slots(chain, lanes, 49152),
        "slots tree": slots(tree, lanes, 128256),
        "slots plain": slots(plain, lanes, 49152),
        "level 1": level(chain, lanes, 49152, 1, DraftLaw(8)),
        "level 2 of a tree": level(tree, lanes, 128256, 2, DraftLaw(8, 0.9), mapped=True),
        "level 1 of a tree": level(tree, lanes, 49152, 1, DraftLaw(0)),
        "levels": levels(chain, lanes, 49152, 1, alone=False),
        "levels alone": levels(chain, lanes, 49152, 1, alone=True),
        "levels of a tree": levels(tree, lanes, 128256, 2, alone=False),
        "course": course(tree, lanes),
    }


if __name__ == "__main__":
    print_compiled(configurations)
