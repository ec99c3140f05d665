"""Kernel tests run in Triton's interpreter on machines without a GPU, and compiled on machines with one."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a device."""
    interpreted = triton.knobs.runtime.interpret
    for item in items:
        if "gpu" in item.keywords and (interpreted or not torch.cuda.is_available()):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TRITON_INTERPRET=0"))
