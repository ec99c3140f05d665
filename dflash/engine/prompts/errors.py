"""What can be wrong with prompts. Every error names its place: a file and a line, or the command line."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import DflashError


class PromptError(DflashError):
    """Root of the errors about prompts.

    Args:
        place: Where the prompt stands, for example `prompts.jsonl:12`.
        reason: What was expected and what was found.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place


class PromptFileUnreadable(PromptError):
    """The file of prompts is missing, a folder, or may not be read."""


class NoPrompts(PromptError):
    """The input holds not a single prompt."""


class EmptyPrompt(PromptError):
    """A prompt or a user turn without any text."""


class NotUtf8(PromptError):
    """A line that is not UTF-8, or text that UTF-8 cannot hold."""


class BrokenLine(PromptError):
    """A line of JSON Lines that is no complete JSON object."""


class LineTooLong(PromptError):
    """A line beyond any sensible size."""


class UnknownShape(PromptError):
    """A JSON object without a prompt, with several, or with one of the wrong form."""


class BadSetting(PromptError):
    """A setting of a line that has the wrong type or makes no sense."""


class UnknownKey(PromptError):
    """A key of a line that looks like a setting, and is none."""


class NotText(PromptError):
    """A file of another kind where lines of text were expected."""


class DuplicateId(PromptError):
    """Two prompts of one run with the same id."""


class DamagedCompression(PromptError):
    """A compressed input that is cut short or corrupt."""


class DecompressorMissing(PromptError):
    """A compressed input, and the package that unpacks it is not installed."""


class SeveralBadPrompts(DflashError):
    """More than one bad line in files that are checked before anything is decoded."""

    def __init__(self, errors: Sequence[PromptError], shown: int = 5) -> None:
        more = len(errors) - shown
        lines = [str(error) for error in errors[:shown]] + ([f"... and {more} more"] if more > 0 else [])
        listed = "\n  ".join(lines)
        super().__init__(
            f"{len(errors)} prompts cannot be used:\n  {listed}\n"
            "Mend them, or leave them out with --skip-bad."
        )
        self.errors = tuple(errors)
