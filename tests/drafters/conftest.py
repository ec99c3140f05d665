"""Tiny models to draft for and with."""

from __future__ import annotations

from tiny_fixtures import other_folder, tiny, tiny_folder

__all__ = ["other_folder", "tiny", "tiny_folder"]
