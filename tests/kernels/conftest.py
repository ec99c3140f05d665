"""Kernel tests run in Triton's interpreter on machines without a GPU, and compiled on machines with one."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a device; the others that launch kernels need the interpreter."""
    interpreted = triton.knobs.runtime.interpret
    for item in items:
        if "gpu" in item.keywords and (interpreted or not torch.cuda.is_available()):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TRITON_INTERPRET=0"))
        elif "interpreted" in item.fixturenames and not interpreted:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1 before triton is imported"))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter of triton 3.6 read loop bounds with numpy >= 2.4, as later versions do."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
