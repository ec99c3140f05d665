"""`--target-impl auto` and `--draft-impl auto`: the native kernels wherever they compute the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_runs
import draft_runs
import pytest
import transformers as tf

from dflash.draftfile.reader import open_draft_file
from dflash.engine import implementation
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.implementation import settle_target
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.errors import UsageError
from dflash.target.errors import CaptureRefused

AUTO = {"target_impl": "auto", "draft_impl": "auto"}


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` choose as it would on a GPU, and the native step run in PyTorch."""
    device_runs.by_reference(monkeypatch)
    monkeypatch.setattr(implementation, "proven", lambda target, way, step=None: target)
    settle = implementation.settle_target

    def on_cuda(target: Any, settings: Any) -> Any:
        view = SimpleNamespace(device=SimpleNamespace(type="cuda"), model=target.model, name=target.name)
        found = settle(view, settings)
        return found._replace(target=target)

    monkeypatch.setattr("dflash.engine.session.settle_target", on_cuda)


def vars_of(settings: Any) -> dict[str, Any]:
    """What a session that was settled once is made with again."""
    names = ("drafter", "length", "branches", "target_impl", "draft_impl")
    return {name: getattr(settings, name) for name in names}


def test_a_cpu_is_generic_without_a_word(tiny: Any, tmp_path: Path) -> None:
    run = draft_runs.session(tiny, tmp_path / "x.parquet", **AUTO)
    assert (run.settings.target_impl, run.settings.draft_impl) == ("generic", "generic")
    assert run.generic_remark is None


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_what_the_kernels_compute_is_native_and_recorded_so(
    tiny: Any, tmp_path: Path, as_on_cuda: None, kind: str
) -> None:
    target = device_runs.native_target(tiny)
    drafter = device_runs.write_drafters(target, tmp_path)[kind]
    found = []
    for chosen in (AUTO, {"target_impl": "native", "draft_impl": "native"}):
        given = {"drafter": drafter, "length": 3, "branches": 1, "max_new_tokens": 8, **chosen}
        run = draft_runs.session(target, tmp_path / f"{len(found)}.parquet", **given)
        assert (run.settings.target_impl, run.settings.draft_impl) == ("native", "native")
        assert run.header["engine"]["attention"] == "native"
        found.append(type(run.engine))
    assert found[0] is found[1]


def test_a_target_that_they_do_not_compute_says_why(tiny: Any, tmp_path: Path, as_on_cuda: None) -> None:
    facts = tiny.model.config.to_dict() | {"hidden_size": 72, "head_dim": 12}
    facts |= {"num_attention_heads": 6, "num_key_value_heads": 2}
    odd = replace(tiny, model=tf.LlamaForCausalLM(tf.LlamaConfig(**facts)).to(tiny.dtype).eval())
    run = draft_runs.session(odd, tmp_path / "x.parquet", **AUTO)
    assert (run.settings.target_impl, run.settings.draft_impl) == ("generic", "generic")
    assert "attention" not in run.header["engine"] or run.header["engine"]["attention"] != "native"
    assert "heads have 12" in run.generic_remark
    assert "hidden_size 72" in run.generic_remark
    with pytest.raises(UsageError, match="--target-impl native"):
        draft_runs.session(odd, tmp_path / "y.parquet", numerics="replay-exact", **AUTO)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "drafts"), [("olmo2", True), ("granite", False), ("mixtral", False)])
def test_captured_layers_record_what_transformers_does(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, drafts: bool
) -> None:
    """Rounds on the device, dense rows and prompts; in PyTorch here, in graphs on a GPU."""
    device_runs.by_reference(monkeypatch)
    monkeypatch.setattr("dflash.engine.session.settle_target", lambda target, given: (target, given, None))
    target = replace(tiny, model=device_runs.other_model(tiny, kind))
    drafter = device_runs.write_drafters(target, tmp_path)["dspark"] if drafts else "ngram"
    found = []
    for impl, rounds in (("generic", "host"), ("captured", "auto")):
        output = tmp_path / f"{impl}.parquet"
        given = {"drafter": drafter, "length": 3, "branches": 2, "lanes": 2, "max_new_tokens": 15}
        given |= {"dense": drafts, "temperature": 0.7, "draft_temperature": 2.0 if drafts else None}
        given |= {"draft_impl": "native" if drafts and impl == "captured" else "generic"}
        run = draft_runs.session(target, output, target_impl=impl, rounds=rounds, **given)
        entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(3))
        run.record(run.conversations(entries, check=True))
        assert isinstance(run.engine, DeviceEngine) == (drafts and impl == "captured")
        assert (open_draft_file(output).header.engine["attention"] == "tree") == (impl == "captured")
        found.append(
            sorted(draft_runs.rows(output), key=lambda row: (row["request_id"], row["kind"], row["round"]))
        )
    device_runs.same_rows(*found)


def test_layers_that_cannot_be_captured_are_refused_with_the_reasons(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(CaptureRefused, match="computes in float32"):
        draft_runs.session(tiny, tmp_path / "x.parquet", target_impl="captured")


def test_code_that_breaks_a_capture_is_told_and_rounds_go_launch_by_launch(
    tiny: Any, tmp_path: Path, as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(implementation, "step_misfits", lambda model: [])
    monkeypatch.setattr(implementation, "proven", broken)
    target = replace(tiny, model=device_runs.other_model(tiny, "olmo2"))
    run = draft_runs.session(target, tmp_path / "x.parquet", **AUTO)
    assert run.settings.target_impl == "generic"
    assert "its type is olmo2" in run.generic_remark
    assert "not permitted when stream is capturing" in run.generic_remark


def test_a_drafter_that_they_do_not_compute_leaves_the_target_native(
    tiny: Any, tmp_path: Path, as_on_cuda: None
) -> None:
    target = device_runs.native_target(tiny)
    windowed = [replace(layer, window=4) for layer in device_runs.WIDE["layers"]]
    drafter = device_runs.write_drafter(
        target, tmp_path / "d", "dflash", block_size=4, layers=tuple(windowed)
    )
    run = draft_runs.session(target, tmp_path / "x.parquet", drafter=drafter, length=3, branches=1, **AUTO)
    assert (run.settings.target_impl, run.settings.draft_impl) == ("native", "generic")
    assert "does not run on the native kernels" in run.rounds_remark


def test_unions_draft_natively_where_each_block_can(tiny: Any, tmp_path: Path, as_on_cuda: None) -> None:
    target = device_runs.native_target(tiny)
    drafter = device_runs.write_drafters(target, tmp_path)["dspark"]
    run = draft_runs.session(target, tmp_path / "x.parquet", drafter=f"{drafter}+suffix", length=3, **AUTO)
    assert run.settings.draft_impl == "native"
    assert run.drafter.drafters[0].native is not None
    again = draft_runs.session(target, tmp_path / "y.parquet", **vars_of(run.settings))
    assert again.drafter.drafters[0].native is not None


def test_what_is_asked_for_is_left_alone(tiny: Any, tmp_path: Path) -> None:
    settings = draft_runs.session(tiny, tmp_path / "x.parquet").settings
    assert settle_target(tiny, settings).settings is settings
