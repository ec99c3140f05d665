"""Record, replay and audit the drafts of speculative decoding."""

from __future__ import annotations
