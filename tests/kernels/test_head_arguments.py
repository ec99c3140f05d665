"""Wrong arguments of the head and the packing are refused before a launch, in words that show the shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash.errors import DflashError
from dflash.kernels.errors import (
    ChoiceRefused,
    DeviceRefused,
    DraftIdsRefused,
    DtypeRefused,
    LayoutRefused,
    ScaleRefused,
    ShapeRefused,
)
from dflash.kernels.lm_head_call import Draw
from dflash.kernels.lm_head_plan import MAX_KEYS, head_plan
from dflash.kernels.lm_head_topk import check_draft_ids, head_scratch, lm_head_topk
from dflash.kernels.pack_features import feature_ring, pack_features
from dflash.kernels.row_norm import CarriedNorm
from tests.kernels.head_cases import poisoned


def int32(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


def head(**changes: Any) -> Any:
    call: dict[str, Any] = {
        "hidden": torch.zeros(3, 32),
        "weight": torch.zeros(50, 32),
        "top": 4,
        "impl": "reference",
    }
    return lm_head_topk(**(call | changes))


DRAW = Draw(torch.zeros(3), int32(3, 2), int32(3))
NORM = CarriedNorm(torch.ones(32), torch.zeros(3, 32), torch.zeros(2, 3))
HEAD: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "three dimensions": (ShapeRefused, {"hidden": torch.zeros(1, 3, 32)}),
    "no rows": (ShapeRefused, {"hidden": torch.zeros(0, 32)}),
    "another width": (ShapeRefused, {"hidden": torch.zeros(3, 48)}),
    "a width of 40": (ShapeRefused, {"hidden": torch.zeros(3, 40), "weight": torch.zeros(50, 40)}),
    "an empty head": (ShapeRefused, {"weight": torch.zeros(0, 32)}),
    "top 0": (ShapeRefused, {"top": 0}),
    "top 33": (ShapeRefused, {"top": 33}),
    "more than there are": (ShapeRefused, {"weight": torch.zeros(3, 32)}),
    "halves and floats": (DtypeRefused, {"hidden": torch.zeros(3, 32).half()}),
    "whole numbers": (
        DtypeRefused,
        {"hidden": torch.zeros(3, 32).int(), "weight": torch.zeros(50, 32).int()},
    ),
    "rows of the head in columns": (LayoutRefused, {"weight": torch.zeros(32, 50).T}),
    "unaligned rows": (LayoutRefused, {"hidden": torch.zeros(3, 33)[:, 1:]}),
    "another device": (DeviceRefused, {"hidden": torch.zeros(3, 32, device="meta")}),
    "no scale": (ScaleRefused, {"scale": 0.0}),
    "an endless scale": (ScaleRefused, {"scale": float("inf")}),
    "ids of int64": (DtypeRefused, {"ids": torch.arange(50)}),
    "ids of another head": (ShapeRefused, {"ids": int32(49)}),
    "asked of other rows": (ShapeRefused, {"asked": int32(2, 4)}),
    "65 asked": (ShapeRefused, {"asked": int32(3, 65)}),
    "asked in columns": (LayoutRefused, {"asked": int32(4, 3).T}),
    "temperatures of other rows": (ShapeRefused, {"draw": DRAW._replace(temperatures=torch.zeros(2))}),
    "keys of int64": (DtypeRefused, {"draw": DRAW._replace(keys=torch.zeros(3, 2).long())}),
    "positions of floats": (DtypeRefused, {"draw": DRAW._replace(positions=torch.zeros(3))}),
    "purposes of other rows": (ShapeRefused, {"draw": DRAW._replace(purposes=int32(4))}),
    "paths elsewhere": (DeviceRefused, {"draw": DRAW._replace(paths=int32(3).to("meta"))}),
    "room for other scores": (ShapeRefused, {"out": poisoned(3, 4, 2)}),
    "room of another width": (ShapeRefused, {"out": poisoned(3, 5, 2), "asked": int32(3, 2), "draw": DRAW}),
    "a norm of other rows": (ShapeRefused, {"norm": NORM._replace(rows=torch.zeros(2, 32))}),
    "a norm without parts": (ShapeRefused, {"norm": NORM._replace(squares=torch.zeros(0, 3))}),
    "a norm of halves": (DtypeRefused, {"norm": NORM._replace(gain=torch.zeros(32).half())}),
    "a norm without an epsilon": (ScaleRefused, {"norm": NORM, "eps": 0.0}),
    "a mode that is none": (ChoiceRefused, {"mode": "exact"}),
    "an implementation that is none": (ChoiceRefused, {"impl": "cuda"}),
}


@pytest.mark.parametrize("name", HEAD)
def test_the_head_refuses(name: str) -> None:
    error, changes = HEAD[name]
    with pytest.raises(error, match=r"expected .*, found ") as caught:
        head(**changes)
    assert isinstance(caught.value, DflashError)


def test_the_reference_takes_what_is_right() -> None:
    found = head(draw=DRAW, asked=int32(3, 2), ids=torch.arange(50, dtype=torch.int32))
    assert found.ids.tolist() == [[0, 1, 2, 3]] * 3


def test_bfloat16_is_refused_in_the_interpreter(interpreted: None) -> None:
    with pytest.raises(DtypeRefused, match="interpreter"):
        head(hidden=torch.zeros(3, 32).bfloat16(), weight=torch.zeros(50, 32).bfloat16(), impl="triton")


def test_a_cpu_is_refused_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.kernels.attention_checks.interpreted", lambda: False)
    with pytest.raises(DeviceRefused, match="cuda"):
        head(impl="triton")
    with pytest.raises(DeviceRefused, match="cuda"):
        pack(impl="triton")


def test_scratch_of_another_shape_is_refused(interpreted: None) -> None:
    small = head_scratch(torch.zeros(2, 32), torch.zeros(50, 32), 4)
    with pytest.raises(ShapeRefused, match="scratch"):
        head(impl="triton", scratch=small)


@pytest.mark.parametrize(
    ("ids", "row"), [([3, 2], 1), ([0, 0], 1), ([-1, 4], 0), ([1, 50], 1)], ids=["order", "twice", "-1", "50"]
)
def test_draft_ids_are_refused(ids: list[int], row: int) -> None:
    with pytest.raises(DraftIdsRefused, match=rf"row {row};"):
        check_draft_ids(torch.tensor(ids), 50)
    check_draft_ids(torch.tensor([0, 3, 49]), 50)


@pytest.mark.parametrize("mode", ["fast", "replay-exact"])
@pytest.mark.parametrize("top", [1, 5, 32])
@pytest.mark.parametrize("rows", [1, 16, 33, 64, 65, 400])
@pytest.mark.parametrize("vocabulary", [1, 64, 49152, 151936, 1000001])
def test_a_plan_covers_rows_and_vocabulary_once(vocabulary: int, rows: int, top: int, mode: str) -> None:
    for item in (2, 4):
        plan = head_plan(rows, vocabulary, item, top, mode, None)
        assert (plan.row_tiles - 1) * plan.block_n < rows <= plan.row_tiles * plan.block_n
        assert plan.tiles == -(-vocabulary // plan.tile.block_v)
        assert (plan.parts - 1) * plan.share < plan.tiles <= plan.parts * plan.share
        assert plan.parts * plan.top <= plan.merge_lists * plan.top <= MAX_KEYS
        if mode == "replay-exact":
            assert plan._replace(row_tiles=1) == head_plan(1, vocabulary, item, top, mode, None)


def pack(**changes: Any) -> None:
    call: dict[str, Any] = {
        "taps": torch.zeros(2, 4, 64),
        "count": int32(2),
        "path": int32(2, 3),
        "ring": feature_ring(8, 64, "int8", "cpu"),
        "impl": "reference",
    }
    pack_features(**(call | changes))


RING = feature_ring(8, 64, "int8", "cpu")
PACK: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "two dimensions": (ShapeRefused, {"taps": torch.zeros(8, 64)}),
    "no slots": (ShapeRefused, {"taps": torch.zeros(2, 0, 64)}),
    "taps of whole numbers": (DtypeRefused, {"taps": torch.zeros(2, 4, 64).int()}),
    "unaligned taps": (LayoutRefused, {"taps": torch.zeros(2, 4, 65)[..., 1:]}),
    "counts of int64": (DtypeRefused, {"count": torch.zeros(2).long()}),
    "counts of other lanes": (ShapeRefused, {"count": int32(3)}),
    "paths with the anchor": (ShapeRefused, {"path": int32(2, 4)}),
    "paths in columns": (LayoutRefused, {"path": int32(3, 2).T}),
    "lanes that rest in int64": (DtypeRefused, {"live": torch.ones(2).long()}),
    "other lanes that rest": (ShapeRefused, {"live": int32(3)}),
    "a span of one": (ShapeRefused, {"span": torch.zeros(1).long()}),
    "a span of int32": (DtypeRefused, {"span": int32(2)}),
    "a ring that is too small": (ShapeRefused, {"ring": feature_ring(7, 64, "int8", "cpu")}),
    "a ring of another width": (ShapeRefused, {"ring": feature_ring(8, 128, "int8", "cpu")}),
    "a ring of floats": (DtypeRefused, {"ring": RING._replace(values=torch.zeros(8, 64))}),
    "int8 without scales": (ShapeRefused, {"ring": RING._replace(scales=None)}),
    "bfloat16 with scales": (ShapeRefused, {"ring": RING._replace(values=RING.values.bfloat16())}),
    "scales of halves": (DtypeRefused, {"ring": RING._replace(scales=torch.zeros(8, 1).half())}),
    "a counter of int32": (DtypeRefused, {"ring": RING._replace(written=int32(1))}),
    "a ring elsewhere": (DeviceRefused, {"ring": feature_ring(8, 64, "int8", "meta")}),
    "an implementation that is none": (ChoiceRefused, {"impl": "cuda"}),
}


@pytest.mark.parametrize("name", PACK)
def test_the_packing_refuses(name: str) -> None:
    error, changes = PACK[name]
    with pytest.raises(error, match=r"expected .*, found ") as caught:
        pack(**changes)
    assert isinstance(caught.value, DflashError)
    pack()


def test_an_encoding_that_is_none() -> None:
    with pytest.raises(ChoiceRefused, match="int4"):
        feature_ring(8, 64, "int4", "cpu")
