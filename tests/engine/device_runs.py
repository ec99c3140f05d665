"""A tiny target and block drafters that the native kernels take, and two recordings compared row by row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import block_models
import numpy as np
import pytest
import torch
import transformers as tf

from dflash.drafters.block.config import LayerMask
from dflash.draftfile.columns import COLUMNS
from dflash.target.load import load_target
from dflash.target.native_layers import Way

WIDE = {"head_dim": 64, "heads": 3, "kv_heads": 1, "layers": (LayerMask(), LayerMask())}
LIKELY = (40, 50, 60, 70, 80, 90)
DRAFT_COLUMNS = (
    "node_logq",
    "node_draft_gap",
    "node_margin",
    "node_confidence",
    # of p and q
    "node_residual_mass",
    "draft_lse",
    "draft_topk_logit",
)
SEEN = ("node_", "slot_", "draft_topk", "draft_lse")
SEEN_COLUMNS = [column.name for column in COLUMNS if column.name.startswith(SEEN)]
SLOT_COLUMNS = [name for name in SEEN_COLUMNS if name.startswith("slot_")]
# tokens of slot after slot, in the order of their logits
LEADERS = ("draft_topk_token", "slot_topk_token")
OF_LEADERS = "draft_topk_target_logit"
LASTING = [column.name for column in COLUMNS if not column.volatile]


def native_target(tiny: Any, seed: int = 0, kind: str = "llama") -> Any:
    """The tiny target with heads that the kernels take."""
    torch.manual_seed(seed)
    facts = copy.deepcopy(tiny.model.config).to_dict() | {"head_dim": 64}
    if kind == "qwen3":
        facts |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
        model = tf.Qwen3ForCausalLM(tf.Qwen3Config(**facts))
    else:
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**facts))
    model = model.to(tiny.dtype).eval().requires_grad_(False)
    # few tokens are likely, so that random drafts are accepted now and then
    model.lm_head.weight.data[list(LIKELY)] *= 30.0
    return replace(tiny, model=model.to(tiny.device))


def other_model(tiny: Any, kind: str) -> Any:
    """A random model of a type that the native step does not know."""
    torch.manual_seed(3)
    names = ("intermediate_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
    facts = {name: getattr(tiny.model.config, name) for name in names}
    facts |= {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    facts |= {"bos_token_id": None, "eos_token_id": None}
    made = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.for_model(kind, pad_token_id=None, **facts))
    return made.to(tiny.dtype).to(tiny.device).eval().requires_grad_(False)


def write_drafter(target: Any, folder: Path, kind: str, **given: Any) -> str:
    """A random drafter's folder, as `--drafter` names it."""
    model = block_models.drafter(target.model, kind, **({"seed": 8} | WIDE | given))
    block_models.write_block(model, folder, target.model.config.num_hidden_layers)
    return block_models.named(kind, folder)


def write_drafters(target: Any, folder: Path) -> dict[str, str]:
    """One of each family."""
    kinds: dict[str, dict[str, Any]] = {"dspark": {}, "dflash": {"block_size": 4}}
    return {kind: write_drafter(target, folder / kind, kind, **given) for kind, given in kinds.items()}


def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native steps of sessions run in PyTorch."""
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))


def cuda_targets(folder: Path) -> dict[str, Any]:
    """The tiny target with heads that the kernels take, on a GPU, by dtype."""
    loaded = {
        dtype: load_target(str(folder), device="cuda", dtype=dtype) for dtype in ("float32", "bfloat16")
    }
    return {dtype: native_target(target) for dtype, target in loaded.items()}


def write_cuda_drafter(target: Any, folder: Path) -> str:
    """A random drafter of a target that is on a GPU."""
    on_cpu = replace(target, model=target.model.to("cpu"))
    name = write_drafter(on_cpu, folder, "dspark")
    target.model.to("cuda")
    return name


@contextmanager
def exact_products() -> Iterator[None]:
    """fp32 products in fp32: TF32 would move logits by more than the tie tolerance."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def same_rows(
    found: list[dict[str, Any]], expected: list[dict[str, Any]], atol: float = 2e-4, rtol: float = 1e-4
) -> None:
    """Every lasting column of every row, floats within a tolerance."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        where = (mine["request_id"], mine["kind"], mine["round"])
        for name in LASTING:
            if atol and name in LEADERS and theirs.get(name):
                same_leaders(mine, theirs, name, f"{where} {name}", atol)
            elif atol and name == OF_LEADERS and theirs.get(name):
                same_of_leaders(mine, theirs, name, f"{where} {name}", atol, rtol)
            else:
                same_values(mine.get(name), theirs.get(name), f"{where} {name}", atol, rtol)


def same_leaders(mine: dict[str, Any], theirs: dict[str, Any], name: str, where: str, atol: float) -> None:
    """The tokens of each slot's largest logits; where these lie within rounding, tokens may change places."""
    one, other, logits = mine[name], theirs[name], theirs[name.replace("_token", "_logit")]
    assert len(one) == len(other), where
    for place in (at for at, token in enumerate(one) if token != other[at]):
        low = high = place
        while low and 0 <= logits[low - 1] - logits[low] <= 2 * atol:
            low -= 1
        while high + 1 < len(logits) and 0 <= logits[high] - logits[high + 1] <= 2 * atol:
            high += 1
        # a slot's last may be tied with one that is not kept
        ends = high + 1 == len(logits) or logits[high + 1] > logits[high]
        assert one[place] in other[low : high + 1] or ends, f"{where} {place}"


def same_of_leaders(
    mine: dict[str, Any], theirs: dict[str, Any], name: str, where: str, atol: float, rtol: float
) -> None:
    """What belongs to each of a slot's drafted leaders, at whichever place of the slot either side has it."""
    assert len(mine[name]) == len(theirs[name]), where
    tokens, slots = "draft_topk_token", sum(lse is not None for lse in theirs["draft_lse"])
    for low in range(0, len(theirs[name]), len(theirs[name]) // slots):
        part = slice(low, low + len(theirs[name]) // slots)
        one, other = (dict(zip(row[tokens][part], row[name][part], strict=True)) for row in (mine, theirs))
        for token in one.keys() & other.keys():
            same_values(one[token], other[token], f"{where} token {token}", atol, rtol)


def same_values(mine: Any, theirs: Any, where: str, atol: float, rtol: float) -> None:
    """One value of a column, or one list of them."""
    if not isinstance(theirs, list) or not isinstance(mine, list):
        numbers = isinstance(mine, float) and isinstance(theirs, float)
        assert np.isclose(mine, theirs, atol=atol, rtol=rtol) if numbers else mine == theirs, where
        return
    assert [value is None for value in mine] == [value is None for value in theirs], where
    one, other = (np.array([value for value in side if value is not None]) for side in (mine, theirs))
    if one.dtype.kind == "f":
        np.testing.assert_allclose(one, other, atol=atol, rtol=rtol, err_msg=where)
    else:
        assert one.tolist() == other.tolist(), where


def same_as_live(table: list[dict[str, Any]], drafts: float = 0.0) -> None:
    """The dense row at each live anchor has the bits of the live row in all columns of the tree and target.

    Columns that depend on the drafter's numbers may differ by `drafts`.
    """
    for live, dense in twins(table):
        for name in SEEN_COLUMNS:
            atol = drafts if name in DRAFT_COLUMNS else 0.0
            same_values(dense[name], live[name], f"{where(live)} {name}", atol, 0.0)


def same_slots_as_live(table: list[dict[str, Any]]) -> int:
    """The same of what the target says, in rows of the same nodes; returns how many there are."""
    found = [(live, dense) for live, dense in twins(table) if live["node_token"] == dense["node_token"]]
    for live, dense in found:
        for name in SLOT_COLUMNS:
            same_values(dense[name], live[name], f"{where(live)} {name}", 0.0, 0.0)
    return len(found)


def near_live(table: list[dict[str, Any]], tolerance: float) -> None:
    """Choices at live anchors differ in near-ties alone; `tolerance` is of their gap."""
    for live, dense in twins(table):
        if live["slot_choice"][0] != dense["slot_choice"][0]:
            assert max(live["slot_gap"][0], dense["slot_gap"][0]) <= tolerance, where(live)


def twins(table: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Live rows, each with the dense row at its anchor."""
    dense = {where(row): row for row in table if row["kind"] == 1}
    found = [(row, dense[where(row)]) for row in table if row["kind"] == 0 and where(row) in dense]
    assert found
    return found


def where(row: dict[str, Any]) -> tuple[str, int]:
    """A row's request and anchor."""
    return row["request_id"], row["anchor_position"]
