"""Wrong arguments of the small products are refused before a launch, in words that show the shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash.errors import DflashError
from dflash.kernels.errors import (
    ChoiceRefused,
    DeviceRefused,
    DtypeRefused,
    LayoutRefused,
    ScaleRefused,
    ShapeRefused,
)
from dflash.kernels.gate_up import gate_up
from dflash.kernels.product_launch import asked_later
from dflash.kernels.product_plan import SMALL_WEIGHT, ProductTile
from dflash.kernels.product_scratch import ProductScratch
from dflash.kernels.qkv_rope import HeadNorms, Rotary, qkv_rope
from dflash.kernels.row_product import row_product


def rows(**changes: Any) -> torch.Tensor:
    call: dict[str, Any] = {
        "x": torch.zeros(3, 32),
        "weight": torch.zeros(8, 32),
        "norm": torch.zeros(32),
        "bias": torch.zeros(8),
        "residual": torch.zeros(3, 8),
        "impl": "reference",
    }
    return row_product(**(call | changes))


def gated(**changes: Any) -> torch.Tensor:
    call: dict[str, Any] = {"x": torch.zeros(3, 32), "weight": torch.zeros(8, 32), "norm": torch.zeros(32)}
    return gate_up(**(call | {"impl": "reference"} | changes))


def heads(**changes: Any) -> torch.Tensor:
    call: dict[str, Any] = {
        "x": torch.zeros(3, 32),
        "weight": torch.zeros(4 * 64, 32),
        "norm": torch.zeros(32),
        "rotary": Rotary(torch.zeros(9, 32), torch.zeros(9, 32)),
        "positions": torch.zeros(3, dtype=torch.int32),
        "places": torch.zeros(3, 2, dtype=torch.int32),
        "k": torch.zeros(1, 1, 16, 64),
        "v": torch.zeros(1, 1, 16, 64),
        "impl": "reference",
    }
    return qkv_rope(**(call | changes))


Refusal = tuple[type[DflashError], Callable[..., torch.Tensor], dict[str, Any]]
REFUSED: dict[str, Refusal] = {
    "no rows": (ShapeRefused, rows, {"x": torch.zeros(0, 32)}),
    "three dimensions": (ShapeRefused, rows, {"x": torch.zeros(1, 3, 32)}),
    "another depth": (ShapeRefused, rows, {"weight": torch.zeros(8, 48)}),
    "an odd depth": (ShapeRefused, rows, {"x": torch.zeros(3, 40), "weight": torch.zeros(8, 40)}),
    "a transposed weight": (LayoutRefused, rows, {"weight": torch.zeros(32, 8).T}),
    "unaligned rows": (LayoutRefused, rows, {"x": torch.zeros(3, 33)[:, 1:]}),
    "columns of x": (LayoutRefused, rows, {"x": torch.zeros(3, 64)[:, ::2]}),
    "dtype of the weight": (DtypeRefused, rows, {"weight": torch.zeros(8, 32).half()}),
    "dtype of the norm": (DtypeRefused, rows, {"norm": torch.zeros(32).half()}),
    "size of the norm": (ShapeRefused, rows, {"norm": torch.zeros(16)}),
    "size of the bias": (ShapeRefused, rows, {"bias": torch.zeros(16)}),
    "rows of the residual": (ShapeRefused, rows, {"residual": torch.zeros(2, 8)}),
    "no eps": (ScaleRefused, rows, {"eps": 0.0}),
    "an output of another size": (ShapeRefused, rows, {"out": torch.zeros(3, 9)}),
    "an output of another dtype": (DtypeRefused, rows, {"out": torch.zeros(3, 8).half()}),
    "device of the weight": (DeviceRefused, rows, {"weight": torch.zeros(8, 32, device="meta")}),
    "an unknown implementation": (ChoiceRefused, rows, {"impl": "cuda"}),
    "an unknown mode": (ChoiceRefused, rows, {"mode": "exact"}),
    "dtype of a later weight": (DtypeRefused, rows, {"later": torch.zeros(8, 32).half()}),
    "a later weight's columns": (LayoutRefused, gated, {"later": torch.zeros(32, 8).T}),
    "a later weight off its line": (LayoutRefused, heads, {"later": torch.zeros(8 * 32 + 1)[1:].view(8, 32)}),
    "device of a later weight": (DeviceRefused, rows, {"later": torch.zeros(8, 32, device="meta")}),
    "gate without up": (ShapeRefused, gated, {"weight": torch.zeros(7, 32)}),
    "a gate's output": (ShapeRefused, gated, {"out": torch.zeros(3, 8)}),
    "rows of no head": (ShapeRefused, heads, {"weight": torch.zeros(4 * 64 - 32, 32)}),
    "fewer heads than K and V": (ShapeRefused, heads, {"weight": torch.zeros(64, 32)}),
    "v unlike k": (ShapeRefused, heads, {"v": torch.zeros(1, 1, 15, 64)}),
    "a head of 72": (
        ShapeRefused,
        heads,
        {"k": torch.zeros(1, 1, 16, 72), "v": torch.zeros(1, 1, 16, 72)},
    ),
    "dtype of k": (DtypeRefused, heads, {"k": torch.zeros(1, 1, 16, 64).half()}),
    "int64 positions": (DtypeRefused, heads, {"positions": torch.zeros(3, dtype=torch.int64)}),
    "places without rows": (ShapeRefused, heads, {"places": torch.zeros(3, dtype=torch.int32)}),
    "whole heads in the table": (ShapeRefused, heads, {"rotary": Rotary(*torch.zeros(2, 9, 64))}),
    "a table in half": (DtypeRefused, heads, {"rotary": Rotary(*torch.zeros(2, 9, 32).half())}),
    "norms of other heads": (ShapeRefused, heads, {"head_norms": HeadNorms(*torch.zeros(2, 32), 1e-6)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_products_refuse(name: str) -> None:
    error, call, changes = REFUSED[name]
    with pytest.raises(error, match=r"expected .*, found ") as caught:
        call(**changes)
    assert isinstance(caught.value, DflashError)


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("numbers", [16, SMALL_WEIGHT, SMALL_WEIGHT + 16])
def test_small_weights_alone_are_asked_for_and_only_beside_what_comes_before(pdl: bool, numbers: int) -> None:
    later = torch.zeros(numbers // 16, 16, dtype=torch.bfloat16)
    found, count = asked_later(later, pdl)
    assert (found is later, count) == ((True, numbers) if pdl and numbers <= 1 << 21 else (False, 0))
    assert asked_later(None, pdl) == (None, 0)


def test_the_references_take_what_is_right() -> None:
    assert rows().shape == (3, 8)
    assert gated().shape == (3, 4)
    assert heads().shape == (3, 128)


def test_bfloat16_is_refused_by_products_in_the_interpreter(interpreted: None) -> None:
    with pytest.raises(DtypeRefused, match="interpreter"):
        row_product(torch.zeros(3, 32).bfloat16(), torch.zeros(8, 32).bfloat16())


def test_a_cpu_is_refused_by_products_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.kernels.attention_checks.interpreted", lambda: False)
    for call in (rows, gated, heads):
        with pytest.raises(DeviceRefused, match="cuda"):
            call(impl="triton")


def test_scratch_of_smaller_products_is_refused(interpreted: None) -> None:
    small = ProductScratch(torch.zeros(1), torch.zeros(1), torch.zeros(0, dtype=torch.int32))
    tile = ProductTile(16, 16, 4, 2, 10**6, False, 0, False)
    long = {"x": torch.zeros(3, 1024), "weight": torch.zeros(8, 1024), "norm": None}
    with pytest.raises(ShapeRefused, match="scratch"):
        rows(**long, impl="triton", scratch=small, tile=tile)
