"""Rounds on the device record what rounds through the host record, token for token and row for row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest

from dflash.engine.device_engine import DeviceEngine


@pytest.fixture(scope="module")
def target(tiny: Any) -> Any:
    return device_runs.native_target(tiny)


@pytest.fixture(scope="module")
def drafters(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("drafters")
    kinds = {"dspark": {}, "dflash": {"block_size": 4}}
    return {
        kind: device_runs.write_drafter(target, folder / kind, kind, **given) for kind, given in kinds.items()
    }


@pytest.fixture(autouse=True)
def _by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native steps run in PyTorch."""
    from dflash.target.native_layers import Way

    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))


def both(target: Any, tmp_path: Path, asked: list[Any], **given: Any) -> list[list[dict[str, Any]]]:
    """The rows of one recording through the host and of one on the device."""
    found = []
    drafts = {} if given["drafter"] == "none" else {"draft_impl": "native"}
    for rounds in ("host", "device"):
        output = tmp_path / f"{rounds}.parquet"
        settings = {"target_impl": "native", "rounds": rounds} | drafts | given
        run = draft_runs.session(target, output, **settings)
        assert isinstance(run.engine, DeviceEngine) == (rounds == "device")
        draft_runs.record(target, asked, output, **settings)
        found.append(draft_runs.rows(output))
    return found


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lanes", [1, 3])
def test_chains_are_the_same(
    target: Any, drafters: dict[str, str], tmp_path: Path, kind: str, temperature: float, lanes: int
) -> None:
    host, device = both(
        target, tmp_path, draft_runs.prompts(4), drafter=drafters[kind], length=3, branches=1, lanes=lanes,
        temperature=temperature, max_new_tokens=13,
    )  # fmt: skip
    assert any(row["accepted_nodes"] for row in host)
    device_runs.same_rows(device, host)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lanes", [1, 3])
def test_plain_decoding_is_the_same(target: Any, tmp_path: Path, temperature: float, lanes: int) -> None:
    host, device = both(
        target, tmp_path, draft_runs.prompts(4), drafter="none", length=0, branches=1, lanes=lanes,
        temperature=temperature, max_new_tokens=9,
    )  # fmt: skip
    device_runs.same_rows(device, host)
