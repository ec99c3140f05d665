"""Arguments that a kernel refuses before it is launched.

KernelArgumentError (2)
├── ShapeRefused       sizes that do not fit together, or that no configuration covers
├── DtypeRefused       a dtype that the kernel does not take
├── LayoutRefused      strides or alignment that would read wrong or slowly
├── DeviceRefused      tensors on different devices, or on one the implementation does not run on
├── ScaleRefused       a scale of the scores that is not positive
├── ChoiceRefused      an implementation, mode or rule that does not exist
├── ParentRefused      a tree whose parents do not come before their children
├── DraftIdsRefused    a draft vocabulary that is not strictly ascending
└── TritonMissing      impl="triton" where Triton is not installed
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import DflashError


class KernelArgumentError(DflashError):
    """Root of what a kernel launcher says no to."""


class ShapeRefused(KernelArgumentError):
    """Sizes that do not fit together, or that no configuration covers."""

    def __init__(self, name: str, expected: str, found: object) -> None:
        shown = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else found
        super().__init__(f"{name}: expected {expected}, found {shown}.")


class DtypeRefused(KernelArgumentError):
    """A dtype that the kernel does not take."""

    def __init__(self, name: str, expected: str, found: object, shape: Sequence[int]) -> None:
        super().__init__(f"{name} {tuple(shape)}: expected dtype {expected}, found {found}.")


class LayoutRefused(KernelArgumentError):
    """Strides or alignment that would read wrong or slowly."""

    def __init__(self, name: str, expected: str, strides: Sequence[int], shape: Sequence[int]) -> None:
        super().__init__(f"{name} {tuple(shape)}: expected {expected}, found strides {tuple(strides)}.")


class DeviceRefused(KernelArgumentError):
    """Tensors on different devices, or on one the implementation does not run on."""

    def __init__(self, name: str, expected: str, found: object, shape: Sequence[int]) -> None:
        super().__init__(f"{name} {tuple(shape)}: expected device {expected}, found {found}.")


class ScaleRefused(KernelArgumentError):
    """A scale of the scores that is not positive."""

    def __init__(self, found: float) -> None:
        super().__init__(f"scale: expected a positive number, found {found}.")


class ChoiceRefused(KernelArgumentError):
    """An implementation, mode or rule that does not exist."""

    def __init__(self, name: str, choices: Sequence[str], found: object) -> None:
        super().__init__(f"{name}: expected one of {', '.join(choices)}, found {found!r}.")


class ParentRefused(KernelArgumentError):
    """A tree whose parents do not come before their children."""

    def __init__(self, lane: int, node: int, parent: int, shape: Sequence[int]) -> None:
        super().__init__(
            f"parents {tuple(shape)}: expected a parent in [-1, {node}) for node {node} of lane {lane}, "
            f"found {parent}; parents come before their children, -1 is the anchor, -2 marks a pad."
        )


class DraftIdsRefused(KernelArgumentError):
    """A draft vocabulary that is not strictly ascending."""

    def __init__(self, row: int, found: int, vocabulary: int, shape: Sequence[int]) -> None:
        super().__init__(
            f"ids {tuple(shape)}: expected ascending ids in [0, {vocabulary}), found {found} at row {row}; "
            "sort the rows of the head by their ids."
        )


class TritonMissing(KernelArgumentError):
    """`impl="triton"` where Triton is not installed."""

    def __init__(self) -> None:
        super().__init__(
            'impl="triton" needs Triton, which is not installed: install it, or say impl="reference".'
        )
