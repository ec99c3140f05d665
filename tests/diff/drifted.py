"""Draft files for the tests of `diff`: a recording that fills every column, and edited copies of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from sample_drafts import PADDED, K, dense_row, header, live_row, prefill_row, write

from dflash.diff import Settings, diff
from dflash.draftfile.rows import RequestRows
from dflash.draftfile.run import open_run
from dflash.draftfile.writer import RunStatus

Rows = list[dict[str, Any]]
Requests = dict[str, Rows]
Edit = Callable[[Requests], None]
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "diff_v1.schema.json").read_text("utf-8"))
# raw target logits that a shift of all logits moves, and the drafter's
SLOT_LOGITS = ("slot_choice_logit", "slot_lse", "slot_topk_logit", "slot_cutoff")
OTHER_LOGITS = ("node_target_logit", "draft_topk_target_logit")
FEATURES = {"mode": "fingerprint", "hidden": 8, "taps": [], "projection": "signs"}
PARENTS, ACCEPTED = [-1, 0, -1], [0]


def head(**changes: Any) -> dict[str, Any]:
    """A header of plain settings; fingerprints are on."""
    return header(
        **{"features": FEATURES, "sampling": {"temperature": 0.8, "top_k": None, "top_p": None}} | changes
    )


def recording(requests: int = 3, seed: int = 0) -> Requests:
    """Requests whose anchors and contexts fit together, every element of every column a value."""
    return {f"r{number}": _request(seed * 100 + number, f"r{number}") for number in range(requests)}


def save(
    path: Path,
    requests: Requests,
    order: Sequence[str] = (),
    status: RunStatus = "finished",
    **changes: Any,
) -> Path:
    """Write a draft file."""
    tables = []
    for name in order or list(requests):
        rows = RequestRows(requests[name][0].get("request_id", name), features=True)
        for row in requests[name]:
            rows.append(row)
        tables.append(rows.table())
    write(path, tables, head(**changes), status, overwrite=True)
    return path


def edited(requests: Requests, edit: Edit) -> Requests:
    """A copy in which something changed."""
    found = copy.deepcopy(requests)
    edit(found)
    return found


def shifted(requests: Requests, by: float, names: Sequence[str] = (*SLOT_LOGITS, *OTHER_LOGITS)) -> Requests:
    """All raw logits of the target moved by a constant; log p stays."""
    found = copy.deepcopy(requests)
    for row in (row for rows in found.values() for row in rows):
        for name in names:
            row[name] = np.asarray(row[name], np.float32) + np.float32(by)
        row["slot_lse_p"] = np.asarray(row["slot_lse_p"], np.float32) + np.float32(by / 0.8)
    return found


def compare(a: Path, b: Path, **settings: Any) -> dict[str, Any]:
    """The document of a comparison, which keeps its schema."""
    document = diff(open_run([a]), open_run([b]), Settings(**settings)).document()
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(document)))
    return document


def columns(document: dict[str, Any], section: str) -> dict[str, dict[str, Any]]:
    """The changed columns of a section, by name."""
    return {row["column"]: row for row in document["sections"][section]["columns"]}


def _request(seed: int, name: str, rounds: int = 4, dense: int = 3) -> Rows:
    rng = np.random.default_rng(seed)
    rows = [prefill_row(rng, name)]
    start = rows[0]["anchor_position"] + 1
    position = start
    for number in range(rounds):
        row = live_row(rng, number, position, len(PARENTS))
        row |= {"node_parent": PARENTS, "accepted_nodes": ACCEPTED, "emitted": 2, "truncated_by": "none"}
        rows.append(row | {"control_state": "{}"})
        position += 2
    rows[-1]["truncated_by"] = "length"
    rows += [dense_row(rng, start + offset, 3) | {"trunk_logp": -0.5} for offset in range(dense)]
    for row in rows:
        _fill(row, rng)
    return rows


def _fill(row: dict[str, Any], rng: np.random.Generator) -> None:
    slots = len(row["slot_choice"])
    for name, value in row.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            row[name] = np.where(np.isnan(value), rng.normal(size=len(value)), value).astype(np.float32)
    # wide enough that no list holds nearly all of p
    row["slot_lse"] = (4 + rng.normal(size=slots)).astype(np.float32)
    row["draft_lse"] = (4 + rng.normal(size=slots)).astype(np.float32)
    row["slot_cutoff"] = rng.normal(size=slots).astype(np.float32)
    row["slot_choice_logit"] = rng.normal(size=slots).astype(np.float32)
    row["node_rank"] = rng.integers(0, 9, slots - 1)
    row["node_token"] = rng.permutation(PADDED)[: slots - 1]
    for side in ("slot", "draft"):
        row[f"{side}_topk_token"] = np.concatenate([rng.permutation(PADDED)[:K] for _ in range(slots)])
        lists = -np.sort(-rng.normal(size=(slots, K)), axis=1)
        row[f"{side}_topk_logit"] = lists.ravel().astype(np.float32)
    row["draft_topk_target_logit"] = rng.normal(size=slots * K).astype(np.float32)
    row["x_note"] = 1.5
    row["feature_fingerprint"] = rng.normal(size=16).astype(np.float32)
    row |= {"feature_values": b"\x01\x02", "feature_scale": [1.0]}
