"""What a finished or failed command means to the shell: its exit code, and one line on stderr."""

from __future__ import annotations

import errno
import signal
import sys
from enum import IntEnum

import click

from dflash.cli.output import complain, silence
from dflash.errors import DflashError

# the folder of temporary files may be full, too
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class Exit(IntEnum):
    """Every exit code of `dflash`."""

    DONE = 0
    DIFFERENT = 1
    UNUSABLE = 2
    LOST = 3
    INTERRUPTED = 128 + signal.SIGINT
    CLOSED_PIPE = 128 + signal.SIGPIPE
    TERMINATED = 128 + signal.SIGTERM


def exit_code(error: BaseException) -> int:
    """Say what went wrong, in words and without a traceback.

    Args:
        error: Whatever ended the command.

    Returns:
        The exit code it stands for.
    """
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else Exit.UNUSABLE
    if isinstance(error, BrokenPipeError):
        return _close_streams()
    try:
        return _told(error)
    except BrokenPipeError:
        return _close_streams()


def _told(error: BaseException) -> int:
    match error:
        case KeyboardInterrupt() | click.Abort():
            complain("interrupted.")
            return Exit.INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
        case click.UsageError() if error.ctx is not None:
            complain(f"{_ended(error.format_message())} See `{error.ctx.command_path} --help`.")
        case click.ClickException():
            complain(error.format_message())
        case DflashError():
            complain(str(error))
            return error.exit_code
        case OSError() if error.filename is not None:
            complain(f"{error.filename}: {error.strerror}.")
        case OSError() if _stdout_fails():
            complain(f"Writing to stdout failed: {error.strerror or error}.")
        case OSError() if error.errno in _NO_ROOM:
            complain(f"Writing failed: {error.strerror or error}.")
        case _:
            complain(f"{type(error).__name__}: {error}. This is a fault in dflash; --debug shows where.")
    return Exit.UNUSABLE


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def _close_streams() -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)
    return Exit.CLOSED_PIPE


def _stdout_fails() -> bool:
    """Whether stdout takes no more; then it is written to in vain from now on."""
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
        return True
    return False
