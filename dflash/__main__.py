"""Entry point of the `dflash` script and of `python -m dflash`."""

from __future__ import annotations

import sys
from typing import NoReturn

from dflash.cli.main import run


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
