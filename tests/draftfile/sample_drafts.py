"""Builds valid draft files of any shape for the tests, and broken ones on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.layout import parquet_writer
from dflash.draftfile.metadata import STAMPS, sealed, stamp
from dflash.draftfile.rows import RequestRows
from dflash.draftfile.writer import DraftFileWriter, Published, RunStatus

VOCAB, PADDED, K = 100, 128, 4
LIVE, DENSE, PREFILL, FEATURES = 0, 1, 2, 3


def digest(number: int) -> str:
    return f"{number:064x}"


def header(**changes: Any) -> dict[str, Any]:
    target = {
        "name": "tiny",
        "revision": None,
        "weights_digest": digest(1),
        "config_digest": digest(2),
        "dtype": "float32",
        "quantisation": {"method": "int8", "group_size": 128, "clip": 0.5},
        "parameter_count": 12,
    }
    drafter = target | {
        "weights_digest": digest(3),
        "family": "self",
        "proposal": "shared",
        "draft_temperature": 0.8,
        "draft_top_k": 8,
        "draft_top_p": None,
        "cuts": ["length", "branches"],
    }
    return {
        "target": target,
        "drafters": [drafter, drafter | {"name": "second"}],
        "tokenizer": {
            "digest": digest(4),
            "vocab_size": VOCAB,
            "padded_vocab_size": PADDED,
            "template_digest": None,
        },
        "sampling": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
        "seed": 2**63 + 5,
        "policy": {
            "rule": {"name": "threshold", "t": 0.7},
            "shape": {"length": 4},
            "control": {"name": "static"},
        },
        "shape": {"length": 4, "branches": 2},
        "dense": False,
        "store_topk": K,
        "draft_topk": 8,
        "q_complete": True,
        "features": {"mode": "none"},
        "tie_tolerance": 1e-3,
        "lanes": 1,
        "rng": {"scheme": "philox4x32-10", "version": 1},
        "engine": {"toolkit": "0.1.0", "torch": "2.13.0"},
        "created_at": "2026-11-29T12:00:00Z",
        "host": None,
        "parents": [],
        **changes,
    }


def floats(rng: np.random.Generator, size: int, holes: float = 0.2) -> np.ndarray:
    values = rng.normal(size=size).astype(np.float32)
    return np.where(rng.random(size) < holes, np.float32("nan"), values)


def ids(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, PADDED, size)


def tree(rng: np.random.Generator, nodes: int) -> dict[str, Any]:
    """A random tree with every tree and target column, and an accepted path in it."""
    slots = nodes + 1
    parents = [int(rng.integers(-1, i)) for i in range(nodes)]
    path: list[int] = []
    while rng.random() < 0.7:
        children = [i for i in range(nodes) if parents[i] == (path[-1] if path else -1)]
        if not children:
            break
        path.append(int(rng.choice(children)))
    lse = floats(rng, slots)
    expanded = int(np.isfinite(lse).sum())
    return {
        "node_token": ids(rng, nodes),
        "node_parent": parents,
        "node_source": rng.integers(0, 2, nodes),
        "node_rank": floats(rng, nodes).round().clip(0, 9),
        "draft_lse": lse,
        "draft_topk_token": ids(rng, K * expanded),
        **{name: floats(rng, K * expanded) for name in ("draft_topk_logit", "draft_topk_target_logit")},
        **{name: floats(rng, nodes) for name in NODE_FLOATS},
        **{name: ids(rng, slots) for name in ("slot_argmax", "slot_choice")},
        **{name: floats(rng, slots) for name in SLOT_FLOATS},
        "slot_cutoff": np.full(slots, -np.inf, np.float32),
        "slot_topk_token": ids(rng, K * slots),
        "slot_topk_logit": floats(rng, K * slots),
        "node_residual_token": ids(rng, nodes),
        "accepted_nodes": path,
    }


NODE_FLOATS = (
    "node_logq",
    "node_draft_gap",
    "node_margin",
    "node_confidence",
    "node_logp",
    "node_target_logit",
)
NODE_FLOATS += ("node_mass_above", "node_residual_mass", "node_uniform")
SLOT_FLOATS = ("slot_choice_logit", "slot_gap", "slot_cut_gap", "slot_lse", "slot_lse_p", "slot_entropy")


def prefill_row(rng: np.random.Generator, name: str) -> dict[str, Any]:
    prompt = ids(rng, int(rng.integers(1, 9)))
    return tree(rng, 0) | {
        "kind": PREFILL,
        "round": -1,
        "anchor_position": len(prompt) - 1,
        "anchor_token": int(prompt[-1]),
        "prompt_tokens": prompt,
        "prompt_text": f"prompt of {name} \N{SNOWMAN}",
        "request_info": '{"rng_key":"00000000deadbeef","ordinal":0}',
        "bonus_token": int(ids(rng, 1)[0]),
        "emitted": 1,
        "truncated_by": "none",
        "draft_length": 0,
        "branches": 1,
        "context_length": len(prompt),
    }


def live_row(rng: np.random.Generator, number: int, position: int, nodes: int) -> dict[str, Any]:
    row = tree(rng, nodes)
    return row | {
        "kind": LIVE,
        "round": number,
        "anchor_position": position,
        "anchor_token": int(ids(rng, 1)[0]),
        "bonus_token": int(ids(rng, 1)[0]),
        "emitted": len(row["accepted_nodes"]) + 1,
        "truncated_by": str(rng.choice(["none", "none", "eos", "stop", "length", "interrupted"])),
        "draft_length": 4,
        "branches": 2,
        "context_length": position,
        "control_state": None if rng.random() < 0.5 else "{}",
        **{name: float(rng.random()) for name in ("draft_us", "verify_us", "round_us")},
        "branch_draft_us": floats(rng, 2),
        "step": number,
        "batch_size": 1,
        "started_at": datetime(2026, 11, 29, 12, tzinfo=UTC),
    }


def dense_row(rng: np.random.Generator, position: int, nodes: int) -> dict[str, Any]:
    row = tree(rng, nodes)
    del row["accepted_nodes"]
    return row | {
        "kind": DENSE,
        "round": -1,
        "anchor_position": position,
        "anchor_token": int(ids(rng, 1)[0]),
        "trunk_logp": float("-inf") if rng.random() < 0.1 else -0.5,
        "trunk_logq": floats(rng, 3),
        "off_trajectory": bool(rng.random() < 0.5),
    }


def request(
    rng: np.random.Generator,
    name: str,
    rounds: int = 3,
    dense: int = 0,
    nodes: int | None = None,
    features: bool = False,
) -> RequestRows:
    """A request of random rows that satisfies every invariant."""
    rows = RequestRows(name, features=features)
    extra = (
        {"feature_values": b"\x01\x02", "feature_fingerprint": [0.5] * 16, "feature_scale": [1.0]}
        if features
        else {}
    )
    rows.append(prefill_row(rng, name) | extra)
    for number in range(rounds):
        size = int(rng.integers(0, 7)) if nodes is None else nodes
        rows.append(live_row(rng, number, number + 10, size) | extra)
    for position in range(dense):
        rows.append(dense_row(rng, position + 10, int(rng.integers(0, 7))))
    return rows


def tables(seed: int, requests: int = 3, **shape: Any) -> list[pa.Table]:
    rng = np.random.default_rng(seed)
    return [request(rng, f"request-{number}", **shape).table() for number in range(requests)]


def write(
    path: Path,
    requests: Sequence[pa.Table],
    head: Mapping[str, Any] | None = None,
    status: RunStatus = "finished",
    **options: Any,
) -> Published:
    with DraftFileWriter(path, head or header(), **{"run_id": "run", **options}) as writer:
        for table in requests:
            writer.write_request(table)
        return writer.finish(status)


Pairs = dict[str, str]


def forge(
    source: Path,
    target: Path,
    pairs: Callable[[Pairs], Pairs] = lambda found: found,
    table: Callable[[pa.Table], pa.Table] = lambda found: found,
    seal: bool = True,
) -> Path:
    """Copies a draft file with other pairs or rows but a right seal and right digests of its bytes."""
    raw = pq.read_metadata(source).metadata
    found = {key.decode(): value.decode() for key, value in raw.items() if key.startswith(b"dflash.")}
    rows = table(pq.ParquetFile(source).read().replace_schema_metadata())
    with target.open("w+b") as file:
        writer = parquet_writer(file, rows.schema)
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        kept = {key: value for key, value in found.items() if key not in STAMPS}
        changed, chunks = pairs(kept), len(rows.schema)
        stored = {key: value for key, value in changed.items() if key == "dflash.seal"}
        wanted = sealed(changed, chunks)
        if not seal:
            wanted.pop("dflash.seal")
        writer.add_key_value_metadata(wanted if seal else wanted | stored)
        writer.close()
        stamp(file)
    return target
