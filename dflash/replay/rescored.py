"""Replay of rescored drafts: p is one target's, contexts and decisions are another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash.draftfile.reader import DraftFile
from dflash.replay.errors import ContextsOfAnother
from dflash.replay.result import PolicyRow


def require_own_contexts(file: DraftFile, walk: bool, check: bool) -> None:
    """Refuse questions about a run that never was.

    Args:
        walk: whether dense rows are to be walked.
        check: whether recorded decisions are to be reproduced.

    Raises:
        ContextsOfAnother: the drafts were rescored.
    """
    contexts = file.header.contexts
    if contexts is None or not (walk or check):
        return
    question = "walked" if walk else "checked"
    advice = "--rejudge" if walk else "no --check"
    raise ContextsOfAnother(str(file.path), model_name(contexts), question, advice)


def model_name(identity: Mapping[str, Any]) -> str:
    """Return a model's name with its quantisation, by which two targets of one name often differ."""
    quantisation = identity.get("quantisation")
    if quantisation is None:
        return str(identity["name"])
    bits = f" {quantisation['bits']} bits" if "bits" in quantisation else ""
    return f"{identity['name']} ({quantisation['method']}{bits})"


def said_of_contexts(file: DraftFile, rows: Sequence[PolicyRow]) -> tuple[PolicyRow, ...]:
    """Say in every row whose contexts its rounds have, where they are not the target's own."""
    contexts = file.header.contexts
    if contexts is None:
        return tuple(rows)
    remark = (
        f"p is of {model_name(file.header.target)}; contexts, drafts and features are those of a run under "
        f"{model_name(contexts)}"
    )
    return tuple(_said(row, remark) for row in rows)


def _said(row: PolicyRow, remark: str) -> PolicyRow:
    """A row with the remark, and without what the other target decided."""
    exactness = "re-judge" if row.exactness == "live" else row.exactness
    remarks = (*row.remarks, remark)
    return replace(row, exactness=exactness, remarks=remarks, emitted=None, emitted_per_round=None)
