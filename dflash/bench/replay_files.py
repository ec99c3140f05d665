"""Draft files of any size to measure replay on: random chains that join up as recorded ones do.

Rows are made and written a row group at a time, so the size of a file has no bound in memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.draftfile.columns import arrow_schema
from dflash.draftfile.summary import Kind
from dflash.draftfile.writer import ROWS_PER_GROUP, DraftFileWriter
from dflash.policy.noise import request_key, rng_key_hex

Array = npt.NDArray[Any]

VOCAB = 32_000
SEED = 11
AGREE = 0.78
PROMPT = 4


@dataclass(frozen=True, slots=True)
class Made:
    """What to make.

    Attributes:
        rounds: live rounds, or dense rows of a dense file; rounded up to whole requests.
        dense: a greedy recording of deterministic drafts with a dense row at every token but the last; else
            independent drafts at temperature 0.8. Both are decided by `match`.
        length: nodes of every chain.
        per_request: rounds, or dense rows, of one request.
        feature_bytes: of hidden states in every live row; 0 for a file without features.
        group_rows: rows after which a row group closes.
    """

    rounds: int
    dense: bool = False
    length: int = 8
    per_request: int = 100
    feature_bytes: int = 0
    group_rows: int = ROWS_PER_GROUP

    @property
    def requests(self) -> int:
        """Whole requests that hold the rounds."""
        return -(-self.rounds // self.per_request)

    @property
    def temperature(self) -> float:
        """Of the target."""
        return 0.0 if self.dense else 0.8


def write(path: Path, made: Made) -> Path:
    """Make a draft file; the same one for the same `made`."""
    random = np.random.default_rng(SEED)
    block = -(-made.group_rows // (made.per_request + 1))
    with DraftFileWriter(path, header(made), run_id="made", row_group_rows=made.group_rows) as writer:
        for first in range(0, made.requests, block):
            numbers = range(first, min(first + block, made.requests))
            writer.write_request(_requests(random, made, numbers))
        writer.finish()
    return path


def header(made: Made) -> dict[str, Any]:
    """The header of such a file."""
    model = {
        "name": "made",
        "revision": None,
        "weights_digest": "0" * 64,
        "config_digest": "0" * 64,
        "dtype": "float32",
        "quantisation": None,
        "parameter_count": 1,
    }
    drafter = model | {
        "family": "self",
        "proposal": "deterministic" if made.dense else "independent",
        "draft_temperature": None if made.dense else made.temperature,
        "draft_top_k": None,
        "draft_top_p": None,
        "draft_follows_target": True,
        "cuts": ["length", "branches"],
    }
    tokenizer = {"digest": "0" * 64, "vocab_size": VOCAB, "padded_vocab_size": VOCAB, "template_digest": None}
    return {
        "target": model,
        "drafters": [drafter],
        "tokenizer": tokenizer,
        "sampling": {"temperature": made.temperature, "top_k": None, "top_p": None},
        "seed": SEED,
        "policy": {"rule": {"name": "match"}, "shape": {}, "control": {"name": "static"}},
        "shape": {"length": made.length, "branches": 1},
        "dense": made.dense,
        "store_topk": 0,
        "draft_topk": None,
        "q_complete": False,
        "features": _features(made),
        "tie_tolerance": 1e-3,
        "lanes": 1,
        "rng": {"scheme": "philox4x32-10", "version": 1},
        "engine": {"toolkit": "0"},
        "created_at": "2026-01-01T00:00:00Z",
        "host": None,
        "parents": [],
    }


def _features(made: Made) -> dict[str, Any]:
    if not made.feature_bytes:
        return {"mode": "none"}
    return {"mode": "all", "encoding": "bf16", "hidden": made.feature_bytes // 2}


def _requests(random: np.random.Generator, made: Made, numbers: range) -> pa.Table:
    """All rows of some requests, in file order."""
    count, per = len(numbers), made.per_request
    first = _tokens(random, (count, 1))
    choice = _tokens(random, (count * per, made.length + 1))
    if made.dense:
        output = np.concatenate((first, _tokens(random, (count, per + made.length))), axis=1)
        ahead = np.lib.stride_tricks.sliding_window_view(output[:, 1:], made.length + 1, axis=1)
        choice = ahead.reshape(count * per, -1)
    draft = _draft(random, made, choice)
    same = draft["node_token"] == choice[:, :-1]
    accepted = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    live = _live(made, numbers, first, draft, accepted)
    tables = [_prefills(made, numbers, first), live]
    if made.dense:
        tables.append(_dense(made, numbers, output, draft))
    owner = np.concatenate([np.arange(count), *(_owners(table, numbers) for table in tables[1:])])
    rows: pa.Table = pa.concat_tables(tables)
    return rows.take(pa.array(np.argsort(owner, kind="stable")))


def _draft(random: np.random.Generator, made: Made, choice: Array) -> dict[str, Array]:
    """One chain a row: `[rows, length]` for nodes, `[rows, length + 1]` for slots."""
    slot, node = choice.shape, (len(choice), made.length)
    token = np.where(random.random(node) < AGREE, choice[:, :-1], _tokens(random, node))
    argmax = choice if made.dense else np.where(random.random(slot) < AGREE, choice, _tokens(random, slot))
    log_q = np.zeros(node) if made.dense else -random.exponential(0.8, node)
    log_p = np.minimum(log_q + random.normal(-0.1, 0.6, node), -1e-3)
    logit = random.normal(20.0, 3.0, slot)
    draft = {
        "node_token": token,
        "node_parent": np.broadcast_to(np.arange(-1, made.length - 1), node),
        "node_source": np.zeros(node, dtype=np.int64),
        "node_rank": random.integers(0, 8, node),
        "node_logq": log_q,
        "node_margin": random.exponential(2.0, node),
        "slot_argmax": argmax,
        "slot_choice": choice,
        "slot_choice_logit": logit - random.exponential(0.5, slot),
        "slot_gap": random.exponential(1.0, slot) + 0.01,
        "slot_lse": logit,
        "slot_entropy": random.exponential(1.0, slot),
        "node_logp": np.where(token == choice[:, :-1], 0.0, -np.inf) if made.dense else log_p,
        "node_target_logit": logit[:, :-1] + log_p,
        "node_mass_above": random.random(node) * 0.5,
        "slot_cutoff": np.full(slot, -np.inf),
    }
    if made.dense:
        return draft
    sampled = {"node_residual_mass": random.random(node), "node_residual_token": _tokens(random, node)}
    return draft | sampled | {"slot_lse_p": logit / made.temperature}


def _prefills(made: Made, numbers: range, first: Array) -> pa.Table:
    prompts = [[1, number // VOCAB, number % VOCAB, 2] for number in numbers]
    info = [
        {
            "sampling": {"temperature": made.temperature, "top_k": None, "top_p": None},
            "seed": SEED,
            "ordinal": 0,
            "rng_key": rng_key_hex(request_key(SEED, prompt, 0)),
        }
        for prompt in prompts
    ]
    rows = len(numbers)
    nodes = dict.fromkeys(("node_token", "node_parent", "node_source"), np.zeros((rows, 0)))
    return _table(
        made,
        nodes
        | {
            "request_id": _names(numbers),
            "kind": np.full(rows, Kind.PREFILL),
            "round": np.full(rows, -1),
            "anchor_position": np.full(rows, PROMPT - 1),
            "anchor_token": np.full(rows, prompts[0][-1]),
            "prompt_tokens": np.array(prompts),
            "request_info": [json.dumps(item) for item in info],
            "slot_argmax": first,
            "slot_choice": first,
            "accepted_nodes": np.zeros((rows, 0)),
            "bonus_token": first[:, 0],
            "emitted": np.ones(rows),
            "truncated_by": ["none"] * rows,
            "draft_length": np.zeros(rows),
            "branches": np.zeros(rows),
        },
    )


def _live(made: Made, numbers: range, first: Array, draft: dict[str, Array], accepted: Array) -> pa.Table:
    per = made.per_request
    rows = np.arange(len(accepted))
    kept = accepted + 1
    if made.dense:
        kept = np.minimum(kept, per - rows % per)
        rows = _visited(kept, per)
        kept, accepted = kept[rows], accepted[rows]
    owner = rows // per
    opens = np.append(True, owner[1:] != owner[:-1])
    ends = np.append(opens[1:], True)
    before = np.cumsum(kept) - kept
    starts = np.flatnonzero(opens)
    since = before - before[starts][owner]
    bonus = draft["slot_choice"][rows, accepted]
    columns: dict[str, Any] = {name: values[rows] for name, values in draft.items()}
    if made.feature_bytes:
        noise = np.random.default_rng(numbers.start).bytes(made.feature_bytes * len(rows))
        size = made.feature_bytes
        columns["feature_values"] = [noise[at : at + size] for at in range(0, len(noise), size)]
    return _table(
        made,
        columns
        | {
            "request_id": _names(numbers)[owner],
            "kind": np.full(len(rows), Kind.LIVE),
            "round": np.arange(len(rows)) - starts[owner],
            "anchor_position": PROMPT + since,
            "anchor_token": np.where(opens, first[owner, 0], np.roll(bonus, 1)),
            "accepted_nodes": _ramps(accepted),
            "bonus_token": bonus,
            "emitted": kept,
            "truncated_by": np.where(ends, "length", "none"),
            "draft_length": np.full(len(rows), made.length),
            "branches": np.ones(len(rows)),
            "draft_us": np.full(len(rows), 900.0),
            "verify_us": np.full(len(rows), 4000.0),
            "round_us": np.full(len(rows), 5000.0),
            "batch_size": np.ones(len(rows)),
        },
    )


def _visited(kept: Array, per: int) -> Array:
    """Rows at which a round begins, from the first row of every request on."""
    seen = np.zeros(len(kept), dtype=bool)
    rows = np.arange(0, len(kept), per)
    end = rows + per
    while len(rows):
        seen[rows] = True
        rows = rows + kept[rows]
        rows, end = rows[rows < end], end[rows < end]
    return np.flatnonzero(seen)


def _dense(made: Made, numbers: range, output: Array, draft: dict[str, Array]) -> pa.Table:
    per, rows = made.per_request, len(numbers) * made.per_request
    facts = {
        "request_id": np.repeat(_names(numbers), per),
        "kind": np.full(rows, Kind.DENSE),
        "round": np.full(rows, -1),
        "anchor_position": np.tile(PROMPT + np.arange(per), len(numbers)),
        "anchor_token": output[:, :per].ravel(),
        "trunk_logp": np.zeros(rows),
        "off_trajectory": np.zeros(rows, dtype=bool),
    }
    return _table(made, draft | facts)


def _table(made: Made, columns: dict[str, Any]) -> pa.Table:
    """A table of the format; rows of a matrix become lists, and what is not given is null."""
    schema = arrow_schema(bool(made.feature_bytes))
    rows = len(columns["kind"])
    arrays = [
        _array(field.type, columns[field.name]) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(kind)
    if not pa.types.is_list(kind):
        return pa.array(values).cast(kind)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.shape[1])
    leaf = pa.array(np.ascontiguousarray(values).reshape(-1)).cast(kind.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), leaf, type=kind)


def _ramps(counts: Array) -> pa.ListArray:
    """The lists 0, 1, ..., count - 1."""
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    values = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int16)))


def _tokens(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Token ids of which low ones are frequent, as in text."""
    return np.asarray((VOCAB * random.random(shape) ** 3).astype(np.int64))


def _names(numbers: range) -> Array:
    return np.array([f"r{number}" for number in numbers], dtype=object)


def _owners(table: pa.Table, numbers: range) -> Array:
    place = {name: index for index, name in enumerate(_names(numbers).tolist())}
    return np.array([place[name] for name in table["request_id"].to_pylist()])
