"""Triton's interpreter, mended for numpy >= 2.4 and without work done twice: kernels compute the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read loop bounds as later versions do; look up the language once a launch, and types once."""
    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: type, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)
    monkeypatch.setattr(interpreter, "_patch_lang", _once_a_launch(interpreter._patch_lang))
    monkeypatch.setattr(interpreter, "_get_np_dtype", _by_name(interpreter._get_np_dtype))
    monkeypatch.setattr(tl.core, "_type_for_tuple_values", _by_shape(tl.core._type_for_tuple_values))


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, most_imprecise: Any) -> Any:
    """A product whose rows do not depend on their places, as a matrix unit's: what adds up in float32 on a
    processor does, in a library's order for whole tiles and in another at their edges.
    """
    wide = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return interpreter.TensorHandle(wide.astype(d.data.dtype) + d.data, d.dtype.scalar)


def _once_a_launch(patch_lang: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Functions that a kernel calls find the language as the kernel's launch has patched it."""
    done: set[str] = set()

    def patch(function: Any) -> Any:
        seen = _languages(function)
        if seen <= done:
            return interpreter._LangPatchScope()
        scope = patch_lang(function)
        done.update(seen)
        restore = scope.restore

        def restored() -> None:
            done.clear()
            restore()

        scope.restore = restored
        return scope

    return patch


@functools.cache
def _languages(function: Any) -> frozenset[str]:
    modules = (value for value in function.__globals__.values() if inspect.ismodule(value))
    return frozenset(module.__name__ for module in modules if module in (tl, tl.core))


def _by_name(dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A block has the dtype of its elements, and equal names are equal types."""
    known: dict[str, Any] = {}

    def found(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = dtype_of(kind)
        return known[name]

    return found


def _by_shape(type_of: Callable[..., Any]) -> Callable[..., Any]:
    """Tuples of whole numbers, as shapes are, have one type for equal numbers."""
    known: dict[tuple[int, ...], Any] = {}

    def found(values: Iterable[Any], fields: Any = None) -> Any:
        sizes = tuple(value.value if type(value) is tl.constexpr else value for value in values)
        if fields is not None or any(type(size) is not int for size in sizes):
            return type_of(values, fields)
        if sizes not in known:
            known[sizes] = type_of(values)
        return known[sizes]

    return found
