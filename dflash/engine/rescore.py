"""Rescore: what would another target think of stored drafts, on the contexts that they were made on?"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from dflash.drafters.base import Anchor
from dflash.draftfile.identity import RESCORE, Difference, require_same
from dflash.draftfile.requests import request_starts
from dflash.draftfile.rows import column_array
from dflash.draftfile.run import Run
from dflash.draftfile.summary import Kind
from dflash.draftfile.writer import DraftFileWriter, Published
from dflash.engine.dense.dense_pass import ROW_BUDGET, merged, tree_rows
from dflash.engine.header import engine_facts, git_facts
from dflash.engine.judge import Judge, Row
from dflash.engine.stored_rows import Stored, anchor_of, knows_q, proposal_of, trunk_of
from dflash.policy.block import Block
from dflash.policy.context import RuleContext, context_from_header
from dflash.policy.noise import parse_rng_key
from dflash.policy.registry import Policy
from dflash.target.load import Target
from dflash.target.model import TrunkModel
from dflash.target.noise import TargetNoise
from dflash.target.sampling import Sampling

# of verification as it ran, which is not what this target would take
_TIMES = ("verify_us", "round_us", "step", "batch_size")
_BULK = ("feature_values", "feature_scale", "feature_fingerprint")
_KINDS = (Kind.PREFILL, Kind.LIVE, Kind.DENSE)


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a rescoring left.

    Attributes:
        slots: places where the target gave its law.
        differences: what differs between the two targets, tokenizers being equal.
    """

    published: Published
    slots: int
    differences: tuple[Difference, ...]


def rescore(
    run: Run,
    target: Target,
    output: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Rescored:
    """Score the stored drafts of a run by another target, at the prefixes where they were drafted.

    The new file holds the same drafts, contexts, decisions and features, and what `target` says of them;
    its header names the parents and, as `contexts`, the model whose contexts and features they are.

    Args:
        progress: called after each request.

    Raises:
        IdentityMismatch: the tokenizer or the vocabulary is another one.
        OutputExists, OutputBusy, FolderNotWritable: the output cannot be written.
    """
    found = {
        "target": target.identity,
        "drafters": run.header.drafters,
        "tokenizer": target.tokenizer_identity,
    }
    differences = require_same(run.header.raw, found, RESCORE, run.files[0].path)
    scorer = _Scorer(run, target)
    with DraftFileWriter(
        output, rescored_header(run, target), run_id=secrets.token_hex(8), overwrite=overwrite
    ) as writer:
        for table in run.tables():
            starts = [*request_starts(table).tolist(), table.num_rows]
            for begin, end in zip(starts, starts[1:], strict=False):
                writer.write_request(scorer.rescored(table.slice(begin, end - begin)))
                progress()
        return Rescored(writer.finish(_status(run)), scorer.slots, tuple(differences))


def rescored_header(run: Run, target: Target) -> dict[str, Any]:
    """The parent's header, with the target that judges now and the one whose contexts these are."""
    parent = run.header
    return parent.raw | {
        "target": target.identity,
        "tokenizer": target.tokenizer_identity,
        "contexts": {"target": parent.contexts or parent.target},
        "parents": [file.content_digest for file in run.files],
        "tie_tolerance": float(target.tie_tolerance),
        "engine": engine_facts(target),
        "git": git_facts(),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node() if parent.raw.get("host") else None,
    }


def _status(run: Run) -> Any:
    unfinished = [file.run_status for file in run.files if file.run_status != "finished"]
    return unfinished[0] if unfinished else "finished"


class _Scorer:
    """Scores the rows of one request after the other in lane 0."""

    def __init__(self, run: Run, target: Target) -> None:
        vocabulary = int(target.model.config.get_text_config().vocab_size)
        self.header = run.header.raw
        self.rule = Policy.from_dict(run.header.policy).rule
        self.store_topk = min(run.header.store_topk, len(target.tokenizer))
        self.noise = TargetNoise(vocabulary)
        self.trunk = TrunkModel(target.model)
        self.slots = 0

    def rescored(self, table: pa.Table) -> pa.Table:
        """The rows of one request with what the target says of them; all else stays."""
        rows = table.select([name for name in table.schema.names if name not in _BULK]).to_pylist()
        info = json.loads(rows[0]["request_info"])
        sampling = _sampling(info, self.header)
        context = context_from_header(self.header, sampling.temperature)
        key, tokens = parse_rng_key(info["rng_key"]), trunk_of(rows)
        places = [place for place, row in enumerate(rows) if row["kind"] in _KINDS]
        anchors = [anchor_of(rows[place], key, tokens, sampling.temperature) for place in places]
        self._begin(tokens, max(anchor.position for anchor in anchors))
        news: list[Row] = [{} for _ in rows]
        scored = self._scored([rows[place] for place in places], anchors, sampling, context)
        for place, row in zip(places, scored, strict=True):
            news[place] = row
        return _replaced(table, news)

    def _begin(self, tokens: Sequence[int], last: int) -> None:
        """Compute the trunk below the last anchor; each row sees of it what lies below its own."""
        self.trunk.reset(0)
        if last:
            self.trunk.append(0, tokens[:last])

    def _scored(
        self, rows: Sequence[Stored], anchors: Sequence[Anchor], sampling: Sampling, context: RuleContext
    ) -> Iterator[Row]:
        draws = self.rule.draws_residuals(context)
        scaled = self.rule.name == Block.name
        judge = Judge(
            self.noise, self.store_topk, emits_choice=not draws, scaled=scaled, trunk_is_choices=False
        )
        proposals = [proposal_of(row, context) for row in rows]
        for chunk in _chunks([1 + len(proposal) for proposal in proposals]):
            trees = [tree_rows(anchors[place], proposals[place]) for place in chunk]
            logits = self.trunk.score([merged(trees)])[0].logits
            self.trunk.drop_nodes(0)
            first = 0
            for place in chunk:
                seen = logits[first : first + 1 + len(proposals[place])]
                first += len(seen)
                self.slots += len(seen)
                dense = rows[place]["kind"] == Kind.DENSE
                row = (judge.dense_row if dense else judge.row)(
                    anchors[place], proposals[place], seen, sampling
                )
                yield row if knows_q(context) or not draws else row | {"node_residual_token": None}


def _chunks(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Places of rows that are scored in one forward."""
    chunk: list[int] = []
    for place, size in enumerate(sizes):
        if chunk and sum(sizes[other] for other in chunk) + size > ROW_BUDGET:
            yield chunk
            chunk = []
        chunk.append(place)
    if chunk:
        yield chunk


def _sampling(info: Mapping[str, Any], header: Mapping[str, Any]) -> Sampling:
    facts = info.get("sampling") or header["sampling"]
    top_p = facts.get("top_p")
    return Sampling(
        float(facts["temperature"]), int(facts.get("top_k") or 0), 1.0 if top_p is None else float(top_p)
    )


def _replaced(table: pa.Table, news: Sequence[Row]) -> pa.Table:
    """The table with the target's columns made anew, and without the times of verification."""
    for index, field in enumerate(table.schema):
        if field.name in _TIMES:
            table = table.set_column(index, field, pa.nulls(table.num_rows, field.type))
        elif _is_said(field.name):
            table = table.set_column(index, field, column_array(field, news))
    return table


def _is_said(column: str) -> bool:
    """Whether a column holds what a target said, not what was drafted, decided or drawn."""
    said = ("node_logp", "node_target_logit", "node_mass_above", "node_residual_mass", "node_residual_token")
    more = ("draft_topk_target_logit", "trunk_logp", "off_trajectory")
    return column.startswith("slot_") or column in said or column in more
