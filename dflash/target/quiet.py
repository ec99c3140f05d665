"""Silence the lines that torchao prints when its optional compiled parts do not load, and no others."""

from __future__ import annotations

import logging

_LINES = {
    "torchao": ("Failed to load ",),
    "torch.utils._pytree": ("%s is an Enum subclass and is now natively supported",),
}


def silence_load_failures() -> None:
    """Filter the known lines from the loggers that print them; call before transformers or torchao is
    imported.
    """
    for name, starts in _LINES.items():
        logging.getLogger(name).addFilter(_Drop(starts))


class _Drop(logging.Filter):
    def __init__(self, starts: tuple[str, ...]) -> None:
        super().__init__()
        self.starts = starts

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.starts)
