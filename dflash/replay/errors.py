"""What can be asked of a recording that it cannot answer."""

from __future__ import annotations

from dflash.errors import DflashError


class ShapeBeyondRecording(DflashError):
    """A policy asks for more of the tree than was recorded."""

    def __init__(self, policy: str, bound: str, asked: int, recorded: int) -> None:
        super().__init__(
            f"Policy {policy!r} asks for {bound} {asked}, and the live rounds were drafted with {bound} "
            f"{recorded}. Ask for at most that, or record with --{bound} {asked}."
        )


class RequestUnknown(DflashError):
    """The prefill row that tells a request's key and sampling is missing or incomplete."""

    def __init__(self, request_id: str, what: str) -> None:
        super().__init__(
            f"Request {request_id!r} has no {what} in `request_info` of its prefill row, so its rounds "
            "cannot be judged. Record it again."
        )
