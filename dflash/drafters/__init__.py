"""One drafter family a file, behind one small base."""

from __future__ import annotations

from dflash.target.quiet import silence_load_failures

silence_load_failures()
