"""Entry point of the `dflash` script and of `python -m dflash`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from dflash.cli.main import run


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    _fill_closed_streams()
    sys.exit(run(sys.argv[1:]))


def _fill_closed_streams() -> None:
    """Stand in for stdout and stderr where they are closed, before a file takes their numbers, here or in
    the recorder's process.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "w", encoding="utf-8", errors="replace"))


if __name__ == "__main__":
    main()
