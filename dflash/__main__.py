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
    """Stand in for stdout and stderr where they are closed, before a file takes their numbers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


if __name__ == "__main__":
    main()
