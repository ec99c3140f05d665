"""Record, replay and audit the drafts of speculative decoding.

Public names are imported when first used: `import dflash` costs milliseconds and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "DflashError": "dflash.errors",
    "DraftFile": "dflash.draftfile.reader",
    "DraftFileWriter": "dflash.draftfile.writer",
    "Policy": "dflash.policy.registry",
    "open_draft_file": "dflash.draftfile.reader",
    "open_run": "dflash.draftfile.run",
    "parse_policy": "dflash.policy.registry",
}

__all__ = ["__version__", *sorted(_HOMES)]


def _require_linked_folders(package: Path) -> None:
    for name in ("kernels", "schemas"):
        if not (package / name).is_dir():
            raise ImportError(
                f"dflash/{name} should be a symbolic link to the folder ../{name}, but in this copy it is "
                "not: it was unpacked from a ZIP or cloned without symlinks. Install the wheel (pip install "
                "dflash-toolkit), or clone again with `git clone -c core.symlinks=true`."
            )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dflash' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


_require_linked_folders(Path(__file__).parent)
