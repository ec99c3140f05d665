"""The header of a recording: who drafted, who verified, how, and with what."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dflash import __version__
from dflash.drafters.base import Drafter
from dflash.engine.features import FINGERPRINT, FeatureMode
from dflash.kernels.attention_plan import Mode
from dflash.kernels.feature_codes import Encoding
from dflash.policy.context import Proposal as ProposalKind
from dflash.policy.registry import Policy
from dflash.policy.step_time import StepTime
from dflash.target.load import Target
from dflash.target.native_support import TargetImpl
from dflash.target.sampling import Sampling


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run fixes beside its models."""

    sampling: Sampling
    seed: int
    policy: Policy
    length: int
    branches: int
    lanes: int = 1
    store_topk: int = 16
    taps: tuple[int, ...] = ()
    features: FeatureMode = FeatureMode.FINGERPRINT
    feature_dtype: Encoding = "bf16"
    keep_host: bool = True
    dense: bool = False
    shard: tuple[int, int] | None = None
    step_time: StepTime | None = None
    target_impl: TargetImpl = "generic"
    numerics: Mode = "fast"


def build_header(target: Target, drafter: Drafter, run: RunSettings) -> dict[str, Any]:
    """The header as a dictionary, floats and integers as numbers."""
    drafters = drafter.headers()
    draft_topk = widest_draft(drafters)
    return {
        "target": target.identity,
        "drafters": drafters,
        "tokenizer": target.tokenizer_identity,
        "sampling": {
            "temperature": float(run.sampling.temperature),
            "top_k": run.sampling.top_k or None,
            "top_p": run.sampling.top_p if run.sampling.top_p < 1.0 else None,
        },
        "seed": run.seed,
        "policy": run.policy.to_dict(),
        "shape": {"length": run.length, "branches": run.branches},
        "dense": run.dense,
        "store_topk": run.store_topk,
        "draft_topk": draft_topk,
        "q_complete": q_complete(drafters, run.store_topk),
        "features": _features(target, run),
        "tie_tolerance": float(target.tie_tolerance),
        "lanes": run.lanes,
        "shard": {"index": run.shard[0], "count": run.shard[1]} if run.shard else None,
        "rng": {"scheme": "philox4x32-10", "version": 1},
        "engine": {**engine_facts(target), **_native(run), **_profile(run)},
        "git": git_facts(),
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": platform.node() if run.keep_host else None,
        "parents": [],
    }


def widest_draft(drafters: Sequence[Mapping[str, Any]]) -> int | None:
    """Most tokens that a sampled slot can draw from; None if one can draw any token, or none is sampled."""
    widths = [drafter["draft_top_k"] for drafter in _sampled(drafters)]
    return max(widths) if widths and all(widths) else None


def q_complete(drafters: Sequence[Mapping[str, Any]], store_topk: int) -> bool:
    """Whether the stored draft logits hold all that could be drawn."""
    widest = widest_draft(drafters)
    return not _sampled(drafters) or (widest is not None and widest <= store_topk)


def _sampled(drafters: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [drafter for drafter in drafters if drafter["proposal"] != ProposalKind.DETERMINISTIC]


def _features(target: Target, run: RunSettings) -> Mapping[str, Any]:
    if not run.taps:
        return {"mode": "none"}
    text = target.model.config.get_text_config()
    hidden, last = int(text.hidden_size), int(text.num_hidden_layers)
    # the last of `hidden_states` is no layer's input: it comes after the final norm
    points = {tap: "final_norm" if tap == last else "in" for tap in run.taps}
    taps = [{"layer": tap, "point": points[tap], "hidden_states": tap} for tap in run.taps]
    projection = f"signs of Philox4x32-10, {FINGERPRINT} a token, over sqrt(taps x hidden)"
    found = {"mode": str(run.features), "hidden": hidden, "taps": taps, "projection": projection}
    return found | {"encoding": run.feature_dtype} if run.features == FeatureMode.ALL else found


def _native(run: RunSettings) -> Mapping[str, Any]:
    if run.target_impl == "captured":
        return {"attention": "tree"}
    return {} if run.target_impl != "native" else {"attention": "native", "numerics": run.numerics}


def _profile(run: RunSettings) -> Mapping[str, Any]:
    return {} if run.step_time is None else {"step_time_profile": run.step_time.to_dict()}


def engine_facts(target: Target) -> Mapping[str, Any]:
    """Versions, device and attention of the process that computes with a target."""
    return {
        "toolkit": __version__,
        "torch": torch.__version__,
        "triton": _installed("triton"),
        "transformers": _installed("transformers"),
        "device": _device_name(target.device),
        "driver": torch.version.cuda if target.device.type == "cuda" else None,
        "attention": target.model.config._attn_implementation,
        "numerics": "fast",
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_facts() -> Mapping[str, Any] | None:
    """Commit of the toolkit's checkout, if it runs from one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _run_git(root, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_run_git(root, "status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _run_git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
