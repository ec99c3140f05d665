"""The errors that users meet: one root, one class per situation, an exit code each.

DflashError (2)
├── UsageError                 a flag, a policy or a prompt that makes no sense
├── draftfile.errors.*         a draft file that cannot be read or written
├── policy.errors.*            a policy that cannot be parsed or lacks columns
├── target.errors.*            a model that cannot be loaded or is not supported
└── DataLost (3)               the command finished, but not with everything
"""

from __future__ import annotations


class DflashError(Exception):
    """Root of every error that is told in words instead of a traceback."""

    exit_code = 2


class UsageError(DflashError):
    """A value that is well-formed but makes no sense here."""


class DataLost(DflashError):
    """The command finished, but some of the data could not be kept."""

    exit_code = 3


def unread(error: OSError) -> str:
    """Say in words why a file cannot be read, to stand after "but"."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    return f"it cannot be read: {(error.strerror or str(error)).lower()}"
