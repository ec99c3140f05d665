"""The precision that drafters are trained and measured in: bfloat16 on CUDA, float32 on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def mixed_precision(device: torch.device) -> Iterator[None]:
    """Use float32 weights in bfloat16 on CUDA; norms keep float32, which torch warns of once."""
    with warnings.catch_warnings(), torch.autocast(device.type, torch.bfloat16, device.type == "cuda"):
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        yield
