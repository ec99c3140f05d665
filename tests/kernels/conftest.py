"""Kernel tests run in Triton's interpreter on machines without a GPU, and compiled on machines with one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a device."""
    interpreted = triton.knobs.runtime.interpret
    for item in items:
        if "gpu" in item.keywords and (interpreted or not torch.cuda.is_available()):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TRITON_INTERPRET=0"))


@pytest.fixture
def quick_topk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let numpy stand in for `tl.topk`, which takes minutes in the interpreter."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def topk(x: Any, k: Any, dim: object = None) -> Any:
        kept = np.ascontiguousarray(np.sort(x.handle.data, axis=-1)[..., ::-1][..., : getattr(k, "value", k)])
        shape = tl.block_type(x.dtype.scalar, list(kept.shape))
        return tl.core.tensor(TensorHandle(kept, x.handle.dtype), shape)

    monkeypatch.setattr(tl, "topk", topk)
