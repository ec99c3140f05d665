"""What can be wrong with a drafter's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import DflashError


class CheckpointError(DflashError):
    """Root of the errors about drafter checkpoints."""


class CheckpointUnreadable(CheckpointError):
    """A checkpoint's files are missing or damaged."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"The drafter {place!r} cannot be read: {reason.rstrip('.')}.")


class UnknownLayout(CheckpointError):
    """The tensors are those of no drafter family that is known."""

    def __init__(self, place: str, names: Sequence[str]) -> None:
        some = ", ".join(sorted(names)[:3])
        super().__init__(
            f"Expected a DFlash or DSpark checkpoint at {place!r}, with fc.weight and hidden_norm.weight, "
            f"found {len(names)} tensors without them: {some}, …"
        )


class CheckpointRefused(CheckpointError):
    """A checkpoint does not fit together, or not to the target; every mismatch is listed.

    Attributes:
        mismatches: One line each.
    """

    def __init__(self, place: str, layout: str, mismatches: Sequence[str]) -> None:
        self.mismatches = list(mismatches)
        lines = "".join(f"\n  {line}" for line in self.mismatches)
        super().__init__(f"The drafter {place!r} (layout {layout}) cannot be used here:{lines}")
