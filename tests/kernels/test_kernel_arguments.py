"""Wrong arguments are refused before a launch, in words that show the shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash.errors import DflashError
from dflash.kernels.accept_tree import Sampled, accept_tree
from dflash.kernels.ancestors import ancestor_words
from dflash.kernels.attention_scratch import Scratch
from dflash.kernels.block_attention import block_attention
from dflash.kernels.errors import (
    ChoiceRefused,
    DeviceRefused,
    DtypeRefused,
    LayoutRefused,
    ParentRefused,
    ScaleRefused,
    ShapeRefused,
)
from dflash.kernels.philox import philox
from dflash.kernels.tree_attention import tree_attention
from tests.kernels.accept_cases import draw


def attention(**changes: Any) -> torch.Tensor:
    call: dict[str, Any] = {
        "q": torch.zeros(2, 5, 8, 64),
        "k": torch.zeros(2, 2, 32, 64),
        "v": torch.zeros(2, 2, 32, 64),
        "lengths": torch.zeros(2, dtype=torch.int32),
        "words": torch.zeros(2, 5, dtype=torch.int64),
        "tail": 4,
        "impl": "reference",
    }
    return tree_attention(**(call | changes))


REFUSED = {
    "three dimensions": (ShapeRefused, {"q": torch.zeros(2, 5, 64)}),
    "another head size": (ShapeRefused, {"q": torch.zeros(2, 5, 8, 80)}),
    "head of k": (ShapeRefused, {"q": torch.zeros(2, 5, 8, 96)}),
    "v unlike k": (ShapeRefused, {"v": torch.zeros(2, 2, 31, 64)}),
    "heads do not divide": (ShapeRefused, {"q": torch.zeros(2, 5, 7, 64)}),
    "group of nine": (ShapeRefused, {"q": torch.zeros(2, 5, 18, 64)}),
    "65 nodes": (ShapeRefused, {"tail": 65}),
    "no scale": (ScaleRefused, {"scale": 0.0}),
    "a negative scale": (ScaleRefused, {"scale": -0.1}),
    "lanes of k": (ShapeRefused, {"k": torch.zeros(3, 2, 32, 64), "v": torch.zeros(3, 2, 32, 64)}),
    "lanes of lengths": (ShapeRefused, {"lengths": torch.zeros(3, dtype=torch.int32)}),
    "words of other slots": (ShapeRefused, {"words": torch.zeros(2, 4, dtype=torch.int64)}),
    "pages of 24": (
        ShapeRefused,
        {
            "k": torch.zeros(4, 2, 24, 64),
            "v": torch.zeros(4, 2, 24, 64),
            "pages": torch.zeros(2, 2, dtype=torch.int32),
        },
    ),
    "dtype of k": (DtypeRefused, {"k": torch.zeros(2, 2, 32, 64).half()}),
    "dtype of lengths": (DtypeRefused, {"lengths": torch.zeros(2, dtype=torch.int64)}),
    "dtype of words": (DtypeRefused, {"words": torch.zeros(2, 5, dtype=torch.int32)}),
    "columns of k": (LayoutRefused, {"k": torch.zeros(2, 2, 64, 32).transpose(2, 3)}),
    "unaligned v": (LayoutRefused, {"v": torch.zeros(2, 2, 32, 65)[..., 1:]}),
    "words in columns": (LayoutRefused, {"words": torch.zeros(5, 2, dtype=torch.int64).T}),
    "device of k": (DeviceRefused, {"k": torch.zeros(2, 2, 32, 64, device="meta")}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_refuses(name: str) -> None:
    error, changes = REFUSED[name]
    with pytest.raises(error, match=r"expected .*, found ") as caught:
        attention(**changes)
    assert isinstance(caught.value, DflashError)
    assert any(digit in str(caught.value) for digit in "0123456789")


def test_the_reference_takes_what_is_right() -> None:
    assert attention().shape == (2, 5, 8, 64)


def test_bfloat16_is_refused_in_the_interpreter(interpreted: None) -> None:
    half = {name: torch.zeros(2, 2, 32, 64).bfloat16() for name in ("k", "v")}
    with pytest.raises(DtypeRefused, match="interpreter"):
        attention(q=torch.zeros(2, 5, 8, 64).bfloat16(), impl="triton", **half)


def test_a_cpu_is_refused_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.kernels.attention_checks.interpreted", lambda: False)
    with pytest.raises(DeviceRefused, match="cuda"):
        attention(impl="triton")
    with pytest.raises(DeviceRefused, match="cuda"):
        accept_tree(*draw(1, 3, 0)[:4])


def test_scratch_of_another_shape_is_refused(interpreted: None) -> None:
    small = Scratch(torch.zeros(1), torch.zeros(1), torch.zeros(0, dtype=torch.int32))
    with pytest.raises(ShapeRefused, match="scratch"):
        attention(impl="triton", scratch=small)


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeRefused, match="out"):
        attention(out=torch.zeros(2, 5, 8, 96))


def test_a_block_of_65_is_refused() -> None:
    cache = torch.zeros(1, 2, 99, 64)
    with pytest.raises(ShapeRefused, match="65"):
        block_attention(
            torch.zeros(1, 65, 8, 64), cache, cache, torch.zeros(1, dtype=torch.int32), impl="reference"
        )


@pytest.mark.parametrize(
    ("parents", "error", "words"),
    [
        ([[-1, 2, 0]], ParentRefused, "node 1 of lane 0"),
        ([[-1, 0], [-1, 1]], ParentRefused, "node 1 of lane 1"),
        ([[-3]], ParentRefused, "-3"),
        ([[-1] * 65], ShapeRefused, "64"),
    ],
)
def test_trees_are_refused(parents: list[list[int]], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ancestor_words(torch.tensor(parents))


def test_words_of_floats_are_refused() -> None:
    with pytest.raises(DtypeRefused, match="float32"):
        ancestor_words(torch.zeros(1, 2))


ACCEPT: dict[str, tuple[type[Exception], Callable[[list[torch.Tensor]], None]]] = {
    "no nodes": (ShapeRefused, lambda a: a.__setitem__(0, a[0][:, :0])),
    "parents of another tree": (ShapeRefused, lambda a: a.__setitem__(1, a[1][:, 1:].contiguous())),
    "words without the anchor": (ShapeRefused, lambda a: a.__setitem__(2, a[2][:, 1:].contiguous())),
    "int64 tokens": (DtypeRefused, lambda a: a.__setitem__(0, a[0].long())),
    "strided choices": (LayoutRefused, lambda a: a.__setitem__(3, a[3].repeat(1, 2)[:, ::2])),
}


@pytest.mark.parametrize("name", ACCEPT)
def test_acceptance_refuses(name: str) -> None:
    error, change = ACCEPT[name]
    arguments = list(draw(2, 4, 0)[:4])
    change(arguments)
    with pytest.raises(error, match="expected"):
        accept_tree(*arguments, impl="reference")


def test_speculative_needs_its_columns_and_no_other_rule_takes_them() -> None:
    case = draw(1, 3, 0)
    with pytest.raises(ShapeRefused, match="speculative"):
        accept_tree(*case[:4], rule="speculative", impl="reference")
    with pytest.raises(ShapeRefused, match="greedy"):
        accept_tree(*case[:4], rule="greedy", sampled=Sampled(*case[4:]), impl="reference")


def test_philox_takes_int32_bits() -> None:
    with pytest.raises(DtypeRefused, match="int32"):
        philox(torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int32), impl="reference")
    with pytest.raises(ShapeRefused, match="3, 2"):
        philox(torch.zeros(3, 4, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32), impl="reference")


def test_words_that_are_no_choice(interpreted: None) -> None:
    for choice in ({"impl": "cuda"}, {"impl": "triton", "mode": "exact"}):
        with pytest.raises(ChoiceRefused, match="expected one of"):
            attention(**choice)
    with pytest.raises(ChoiceRefused, match="block"):
        accept_tree(*draw(1, 3, 0)[:4], rule="block", impl="reference")
