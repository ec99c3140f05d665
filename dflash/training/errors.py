"""What can go wrong in training, told in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.errors import DflashError, UsageError


class NoWarmStart(DflashError):
    """The target's layers cannot be copied into the drafter."""

    def __init__(self, place: str, wanted: tuple[int, ...], found: tuple[int, ...] | None) -> None:
        seen = "no such linear layer" if found is None else f"{found}"
        super().__init__(
            f"Expected {place} of the target's last layers as {wanted}, found {seen}. Use --init random, or "
            "sizes that are the target's."
        )


class NoRoomInWindow(UsageError):
    """Texts longer than the target can read."""

    def __init__(self, asked: int, window: int) -> None:
        super().__init__(f"Expected texts of at most {window} tokens, the target's window, found {asked}.")


class NothingToDraft(DflashError):
    """A corpus in which no anchor has a next token of the target's own."""

    def __init__(self) -> None:
        super().__init__(
            "Expected answers of at least two tokens to learn from, found none; raise the length of texts."
        )


class NoFeatures(DflashError):
    """A draft file that does not hold the target's hidden states."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(
            f"{path}: expected hidden states to train from, found features {mode!r}; record with "
            "--features all."
        )


class TooFewRequests(DflashError):
    """Draft files with too few requests to hold some out."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"Expected draft files of at least {expected} requests, since some are held out, found {found}."
        )


class OtherTaps(DflashError):
    """Draft files that tapped different layers."""

    def __init__(self, path: Path, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
        super().__init__(f"{path}: expected the taps {expected} of the files before it, found {found}.")


class OutputTaken(UsageError):
    """The folder to write to holds something."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: expected no folder, or an empty one, found files; --resume goes on with a training, "
            "--overwrite starts anew."
        )


class NothingToResume(UsageError):
    """No checkpoint lies where a training should go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: expected a checkpoint to go on from, found none; leave --resume out.")


class OtherTraining(UsageError):
    """A checkpoint of a training with other settings."""

    def __init__(self, folder: Path, differing: Mapping[str, tuple[Any, Any]]) -> None:
        """Name options.

        Args:
            differing: what the checkpoint has and what is asked for, by its place in the identity.
        """
        told = (_difference(key, *values) for key, values in differing.items())
        super().__init__(
            f"{folder}: expected the settings of its checkpoint, found {'; '.join(told)}. Give what it "
            "has, or train into another folder."
        )


# options whose names are not those of the settings
_OPTIONS = {"settings.text.judged": "--max-new-tokens", "settings.step.texts": "--step-texts"}
# digests, which tell nobody more
_DIGESTS = {"target": "another --target", "texts": "other texts, of --prompts or --draft-files"}


def _difference(key: str, before: Any, now: Any) -> str:
    for name, told in _DIGESTS.items():
        if key.partition(".")[0] == name:
            return told
    option = _OPTIONS.get(key, "--" + key.rpartition(".")[2].replace("_", "-"))
    return f"{option} {_value(now)} where it has {_value(before)}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)
