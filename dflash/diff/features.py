"""How far the target's hidden states moved: cosine and norm of their fingerprints, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash.diff.aligned import FINGERPRINT, Aligned
from dflash.diff.changes import Elements
from dflash.diff.spread import Spread
from dflash.draftfile.header import Header

PERCENTILES = (100, 99, 90, 50, 10, 1, 0)
_SETTINGS = ("hidden", "taps", "projection")


@dataclass(slots=True)
class Features:
    """Sums over the tokens whose fingerprint both files have in the same context."""

    cosine: Spread = field(default_factory=Spread)
    norm: Spread = field(default_factory=Spread)

    def add(self, found: Elements) -> None:
        """Take elements of the fingerprints, whole fingerprints in order."""
        a, b = (side.value.astype(np.float64).reshape(-1, FINGERPRINT) for side in (found.a, found.b))
        both = (found.a.valid & found.b.valid).reshape(-1, FINGERPRINT).all(axis=1)
        norm_a, norm_b = (np.linalg.norm(side, axis=1) for side in (a, b))
        both &= (norm_a > 0) & (norm_b > 0)
        dots = (a[both] * b[both]).sum(axis=1)
        self.cosine.add(np.clip(dots / (norm_a[both] * norm_b[both]), -1.0, 1.0))
        self.norm.add(norm_b[both] / norm_a[both])

    def to_dict(self) -> dict[str, Any]:
        return {"cosine": self.cosine.to_dict(PERCENTILES), "norm_ratio": self.norm.to_dict(PERCENTILES)}


def fingerprints(aligned: Aligned) -> Elements:
    """Fingerprints of the tokens from the anchor on that both rows have and that see the same context."""
    return aligned.prefix("feature_fingerprint", aligned.rows.room * FINGERPRINT)


def comparable_features(a: Header, b: Header) -> str | None:
    """Why fingerprints of two runs cannot be compared; None if they can."""
    for header, side in ((a, "A"), (b, "B")):
        if header.features["mode"] == "none":
            return f"{side} holds no features"
    for key in _SETTINGS:
        if a.features.get(key) != b.features.get(key):
            return f"the features differ in {key}"
    return None
