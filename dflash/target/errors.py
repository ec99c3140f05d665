"""What can go wrong with a target model before a single token is decoded."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import DflashError


class TargetError(DflashError):
    """Root of the errors about target models."""


class NoSuchModel(TargetError):
    """The name is neither a folder, a GGUF file, a known model nor a hub id that can be reached."""


class ModelUnreadable(TargetError):
    """The weights or the configuration of a model cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The model {name!r} cannot be read: {reason.rstrip('.')}.")


class NoTokenizer(TargetError):
    """A model comes without a tokenizer that can be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"The model {name!r} has no tokenizer that can be read: {reason.rstrip('.')}. "
            "Expected tokenizer.json beside the weights."
        )


class UnsupportedArchitecture(TargetError):
    """The engine cannot score this kind of model as trees."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The model {name!r} is not supported: {reason.rstrip('.')}.")


class NativeUnsupported(TargetError):
    """The native step cannot compute this model; lists every reason."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(
            f"The model {name!r} does not run on the native kernels: {'; '.join(reasons)}. "
            "The generic implementation runs it."
        )


class CaptureRefused(TargetError):
    """A model's layers cannot be held in a CUDA graph around the tree kernel; lists every reason."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(
            f"The layers of {name!r} cannot be captured: {'; '.join(reasons)}. "
            "The generic implementation runs them."
        )


class UnsupportedQuantisation(TargetError):
    """The device has no kernels for the quantisation that was asked for."""

    def __init__(self, method: str, device: str) -> None:
        super().__init__(
            f"{method} weights are not supported on {device}; there use int8 or none, or a CUDA device."
        )


class UnsupportedWeights(TargetError):
    """A quantisation has no kernels for the dtype of the weights."""

    def __init__(self, method: str, expected: str, found: str) -> None:
        super().__init__(
            f"{method} weights are made from {expected}, and the model's are {found}. "
            f"Use --dtype {expected}, or int8."
        )


class SelfTestFailed(TargetError):
    """A tree scored in one forward disagrees with its paths scored one by one.

    Args:
        name: The model.
        worst: Largest difference of a logit.
        allowed: Largest difference that its dtype explains.
    """

    def __init__(self, name: str, worst: float, allowed: float) -> None:
        super().__init__(
            f"The model {name!r} failed the start-up self-test: logits of a drafted tree are off "
            f"by {worst:.3g}, expected at most {allowed:.3g}. Nothing was recorded; its attention does not "
            "honour tree masks."
        )


class ModelNotFetched(TargetError):
    """A model of the catalogue could not be downloaded."""


class ModelChanged(TargetError):
    """The downloaded file is not the one whose digest the toolkit pins."""


class ModelNotConverted(TargetError):
    """A GGUF file could not be turned into a model folder."""


class CacheNotWritable(TargetError):
    """The cache folder cannot be created or written."""
