"""Stored drafts as a warm cache: propose what a draft file holds for the same trunk, draft nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.drafters.base import (
    CUTS,
    Anchor,
    Drafter,
    DraftShape,
    Proposal,
    ProposalKind,
    SlotLaw,
    entry,
)
from dflash.drafters.race import slot_law
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.summary import Kind
from dflash.policy.context import DraftSampling
from dflash.policy.noise import parse_rng_key

Row = Mapping[str, Any]
Noise = tuple[tuple[int, int], float]
Place = tuple[Noise | None, bytes]

_COLUMNS = (
    "request_id",
    "kind",
    "anchor_position",
    "prompt_tokens",
    "request_info",
    "node_token",
    "node_parent",
    "node_source",
    "node_rank",
    "node_logq",
    "node_draft_gap",
    "node_margin",
    "node_confidence",
    "draft_lse",
    "draft_topk_token",
    "draft_topk_logit",
    "accepted_nodes",
    "bonus_token",
    "emitted",
)


def trunks(file: DraftFile) -> Iterator[list[int]]:
    """Prompt and committed tokens of every request of a file, in order."""
    for trunk, _ in _requests(
        file, (*_COLUMNS[:4], "node_token", "accepted_nodes", "bonus_token", "emitted")
    ):
        yield trunk


class StoredDrafter(Drafter):
    """Looks an anchor up by the trunk below it; sampled proposals also by the request's key and temperature.

    The shape that is asked for is cut out of the stored tree. Where a live and a dense row stand at one
    anchor, the larger tree is kept. An anchor that was never drafted from gets an empty proposal.
    """

    family = "file"

    def __init__(self, path: Path, store_topk: int) -> None:
        self.file = open_draft_file(path)
        self.name = f"file:{path.name}"
        header = self.file.header
        super().__init__(ProposalKind.of_union(ProposalKind(each["proposal"]) for each in header.drafters))
        self.store_topk = min(store_topk, header.store_topk)
        self.hits = self.misses = 0
        self._rows: dict[Place, Row] = {}
        for trunk, rows in _requests(self.file, _COLUMNS):
            for row in rows:
                if row["kind"] in (Kind.LIVE, Kind.DENSE):
                    self._keep(trunk, row)

    def _keep(self, trunk: Sequence[int], row: Row) -> None:
        place = self._place(row["noise"], trunk, row["anchor_position"])
        kept = self._rows.get(place)
        if kept is None or len(kept["node_token"]) < len(row["node_token"]):
            self._rows[place] = row

    def _place(self, noise: Noise, trunk: Sequence[int], position: int) -> Place:
        below = np.asarray(trunk[: position + 1], dtype="<i4").tobytes()
        return (None if self.kind is ProposalKind.DETERMINISTIC else noise), hashlib.sha256(below).digest()

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """The stored tree of each anchor, cut to `shape`."""
        return [self._propose(anchor, shape) for anchor in anchors]

    def _propose(self, anchor: Anchor, shape: DraftShape) -> Proposal:
        noise = (anchor.key, anchor.temperature)
        row = self._rows.get(self._place(noise, anchor.trunk, anchor.position))
        if row is None:
            self.misses += 1
            return Proposal()
        self.hits += 1
        return self._cut(row, shape, self.sampling_at(anchor.temperature))

    def _cut(self, row: Row, shape: DraftShape, sampling: DraftSampling) -> Proposal:
        proposal, index = Proposal(), {-1: -1}
        cut = shape.branches < self.file.header.shape["branches"]
        branch = _branches(row["node_parent"], shape.length)
        for node, parent in enumerate(row["node_parent"]):
            if node in branch and not (cut and branch[node] >= shape.branches):
                index[node] = proposal.add(
                    row["node_token"][node],
                    index[parent],
                    log_q=row["node_logq"][node],
                    rank=row["node_rank"][node],
                    draft_gap=row["node_draft_gap"][node],
                    margin=row["node_margin"][node],
                    confidence=row["node_confidence"][node],
                    source=row["node_source"][node],
                )
        self._expanded(row, proposal, index, sampling)
        return proposal

    def _expanded(self, row: Row, proposal: Proposal, index: dict[int, int], sampling: DraftSampling) -> None:
        """Copy what the drafter saw at the slots whose children are kept."""
        width = self.file.header.store_topk
        expanded = [slot for slot, lse in enumerate(row["draft_lse"]) if lse is not None]
        for place, slot in enumerate(expanded):
            here = index.get(slot - 1)
            if here is None or here not in proposal.parents:
                continue
            tokens = np.array(row["draft_topk_token"][place * width : (place + 1) * width], dtype=np.int32)
            logits = np.array(row["draft_topk_logit"][place * width : (place + 1) * width], dtype=np.float32)
            proposal.lse[here] = row["draft_lse"][slot]
            proposal.topk_tokens[here] = tokens[: self.store_topk]
            proposal.topk_logits[here] = logits[: self.store_topk]
            if sampling.temperature > 0 and self.kind is not ProposalKind.MIXED:
                law = slot_law(logits.astype(np.float64), sampling)
                proposal.law[here] = SlotLaw(tokens[law.tokens].astype(np.int64), law.log_q)

    def sampling_at(self, temperature: float) -> DraftSampling:
        """How q was made, from the file's header."""
        if temperature == 0 or self.kind is ProposalKind.DETERMINISTIC:
            return DraftSampling(0.0)
        stored = next(each for each in self.file.header.drafters if each["draft_temperature"] is not None)
        drawn = temperature if stored.get("draft_follows_target") else stored["draft_temperature"]
        return DraftSampling(float(drawn), stored["draft_top_k"] or 0, float(stored["draft_top_p"]))

    def remark(self) -> str | None:
        """How many of the run's anchors the file has no draft for."""
        asked = self.hits + self.misses
        if self.misses == 0:
            return None
        if self.hits:
            return f"{self.name} holds drafts for {self.hits} of the {asked} places that were asked for"
        return (
            f"{self.name} holds no draft for any of the {asked} places that were asked for: were these "
            "prompts, and this seed and temperature, recorded in it?"
        )

    def header(self) -> dict[str, Any]:
        """The first stored drafter's entry; see `headers`."""
        return self.headers()[0]

    def headers(self) -> list[dict[str, Any]]:
        """The stored drafters' own entries, by whom they came and from which content."""
        came = {"name": self.name, "stored_in": self.file.content_digest}
        nobody = entry(self.name, self.family, self.kind, cuts=[*CUTS])
        return [nobody | stored | came for stored in self.file.header.drafters or ({},)]


def _branches(parents: Sequence[int], length: int) -> dict[int, int]:
    """By node down to depth `length`, the first root-to-leaf path, in proposal order, that holds it."""
    depth: list[int] = []
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        depth.append(1 if parent < 0 else depth[parent] + 1)
        if depth[node] <= length:
            children.setdefault(parent, []).append(node)
    branch: dict[int, int] = {}
    leaves = 0
    stack = children.get(-1, [])[::-1]
    while stack:
        node = stack.pop()
        branch[node] = leaves
        below = children.get(node, [])
        leaves += not below
        stack += below[::-1]
    return branch


def _requests(file: DraftFile, columns: Sequence[str]) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """Each request's whole trunk and its rows; every row gets its key and temperature as `noise`."""
    for table in file.tables(list(columns)):
        request: list[dict[str, Any]] = []
        for row in table.to_pylist():
            if request and row["request_id"] != request[0]["request_id"]:
                yield _trunk(request), request
                request = []
            if not request:
                noise = _noise(row.get("request_info"))
            request.append(row | {"noise": noise})
        if request:
            yield _trunk(request), request


def _noise(info: str | None) -> Noise:
    if info is None:
        return (0, 0), 0.0
    facts = json.loads(info)
    return parse_rng_key(str(facts["rng_key"])), float(facts["sampling"]["temperature"])


def _trunk(rows: Sequence[Row]) -> list[int]:
    trunk = list(rows[0]["prompt_tokens"])
    for row in rows:
        if row["kind"] in (Kind.PREFILL, Kind.LIVE):
            path = [row["node_token"][node] for node in row["accepted_nodes"]]
            trunk += [*path, row["bonus_token"]][: row["emitted"]]
    return trunk
