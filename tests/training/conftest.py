"""A tiny target to train for, and another model with its tokenizer."""

from __future__ import annotations

from tiny_fixtures import other_folder, tiny, tiny_folder

__all__ = ["other_folder", "tiny", "tiny_folder"]
