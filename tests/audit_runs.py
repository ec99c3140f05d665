"""Draft files made wrong on purpose: rows or header of honest ones changed, and written again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dflash.draftfile.reader import open_draft_file
from dflash.draftfile.rows import RequestRows
from dflash.draftfile.run import open_run
from dflash.draftfile.writer import DraftFileWriter
from dflash.replay.audit.audit import Audit, audit
from dflash.replay.audit.verdict import Status, Verdict

Row = dict[str, Any]


def rewritten(
    path: Path,
    out: Path,
    row: Callable[[Row], None] = lambda row: None,
    header: Callable[[dict[str, Any]], None] = lambda header: None,
) -> Path:
    """Write a draft file again, every row and the header as changed by the caller."""
    file = open_draft_file(path)
    facts = json.loads(json.dumps(file.header.raw))
    header(facts)
    features = facts["features"]["mode"] != "none"
    with DraftFileWriter(out, facts, run_id="wrong") as writer:
        for table in file.tables():
            requests: dict[str, list[Row]] = {}
            for each in table.to_pylist():
                requests.setdefault(each["request_id"], []).append(each)
            for name, rows in requests.items():
                collected = RequestRows(name, features=features)
                for each in rows:
                    row(each)
                    collected.append(each)
                writer.write_request(collected.table())
        writer.finish()
    return out


def audited(path: Path, **given: Any) -> Audit:
    """The audit of one file."""
    return audit(open_run([path]).files, **given)


def verdict(found: Audit, probe: str) -> Verdict:
    """What one probe found."""
    return next(each for each in found.verdicts if each.probe == probe)


def failed(found: Audit) -> set[str]:
    """Names of the probes that failed."""
    return {each.probe for each in found.verdicts if each.status is Status.FAILED}


def untested(found: Audit) -> set[str]:
    """Names of the probes that could not look."""
    return {each.probe for each in found.verdicts if each.status is Status.UNTESTED}


def foreign(header: dict[str, Any]) -> None:
    """The file of an engine whose generator is unknown."""
    header["rng"] = {"scheme": "other", "version": 1}


def by_slot(row: Row, column: str) -> np.ndarray[Any, Any]:
    """A slot column as `[slots, values a slot]`."""
    values = np.array(row[column], dtype=object)
    return values.reshape(len(row["node_token"]) + 1, -1)


def expanded(row: Row, column: str) -> dict[int, list[Any]]:
    """A column of the draft's top-k by the slot that it was expanded at."""
    slots = [slot for slot, lse in enumerate(row["draft_lse"]) if lse is not None]
    values = np.array(row[column]).reshape(len(slots), -1) if slots else []
    return {slot: part.tolist() for slot, part in zip(slots, values, strict=True)}
