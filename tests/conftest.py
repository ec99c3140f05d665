"""What every test relies on: a clean environment, and the default target where a test asks for it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# read when triton is first imported: without a GPU the kernels run in its interpreter
os.environ.setdefault("TRITON_INTERPRET", "0" if shutil.which("nvidia-smi") else "1")
# read when torch is first imported, here and in commands that tests start: each core has a process already
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the terminal's width and a developer's DFLASH_* variables from the tests, but for the cache."""
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in [name for name in os.environ if name.startswith("DFLASH_") and name != "DFLASH_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def default_target() -> Path:
    """The folder of the default target, fetched if need be (mark the test `network`)."""
    from dflash.target.default import default_target_folder

    return default_target_folder()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels in triton's interpreter."""
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1 before triton is imported")
    import faster_interpreter

    faster_interpreter.mend(monkeypatch)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let processes that share the files take the long ones first, so that they end together."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        slow = Counter(item.path for item in items if "slow" in item.keywords)
        items.sort(key=lambda item: (-slow[item.path], -tests[item.path], item.path))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m gpu` read only the files that hold such tests: a GPU machine may lack what others import."""
    if config.option.markexpr != "gpu" or not collection_path.name.startswith("test_"):
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None
