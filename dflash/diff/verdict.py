"""The one word that a comparison comes to, and the exit code it means."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dflash.diff.acceptance import AcceptanceReport
from dflash.diff.comparison import Comparison
from dflash.draftfile.run import Run


class Verdict(StrEnum):
    """What two files are to each other."""

    IDENTICAL = "identical"
    EQUAL = "equal within tolerance"
    SAME_LAW = "same law"
    SHORTER = "equal as far as both go"
    DRIFTED = "drifted, acceptance unchanged"
    DIFFERENT = "different"
    UNALIGNED = "no aligned request"

    @property
    def exit_code(self) -> int:
        unlike = (Verdict.SHORTER, Verdict.DRIFTED, Verdict.DIFFERENT)
        return 2 if self is Verdict.UNALIGNED else int(self in unlike)


MEANINGS: Mapping[Verdict, str] = {
    Verdict.IDENTICAL: "every value compared is the same, and so are the headers but for time and place",
    Verdict.EQUAL: "tokens, drafts and decisions are the same, and no number lies beyond the tolerance; the "
    "headers may differ",
    Verdict.SAME_LAW: "as before, but for raw logits, whose log p are within the tolerance",
    Verdict.SHORTER: "a recording was interrupted or recovered: requests end sooner in it or are missing, "
    "and all that both files hold is equal within the tolerance",
    Verdict.DRIFTED: "something differs, and the paired 95 % interval of tau's difference contains 0",
    Verdict.DIFFERENT: "something differs, and tau with it, or one cannot tell; or requests have no partner; "
    "or the tokenizers differ",
    Verdict.UNALIGNED: "the files have no prompt in common, so nothing can be said",
}


def judge(
    found: Comparison, acceptance: AcceptanceReport, same_header: bool, same_tokenizer: bool
) -> Verdict:
    """Come to a verdict over all requests of both files."""
    requests, ledger = found.requests, found.ledger
    if not requests.aligned:
        return Verdict.UNALIGNED
    if not (requests.all_aligned and same_tokenizer):
        return Verdict.DIFFERENT
    if requests.all_compared and not (found.tokens.differ or found.drafts.differ):
        if same_header and not ledger.changed:
            return Verdict.IDENTICAL
        if not ledger.beyond:
            return Verdict.EQUAL
        if not ledger.beyond_law:
            return Verdict.SAME_LAW
    return Verdict.DRIFTED if acceptance.unchanged else Verdict.DIFFERENT


def broken_off(found: Comparison, a: Run, b: Run) -> list[str]:
    """Say which side was broken off, if all that differs is that requests end sooner there or are missing."""
    cut, tokens, reasons = found.cut, found.tokens, found.ledger.get("truncated_by")
    odd = cut.odd or tokens.parted or tokens.other_prompts or found.drafts.differ
    if odd or not found.requests.aligned or found.ledger.beyond_but("truncated_by"):
        return []
    if reasons is not None and reasons.beyond != cut.marked:
        return []
    told, left = [], found.requests.left
    for name, run, ended, missing in (("A", a, cut.a, len(left.b)), ("B", b, cut.b, len(left.a))):
        if not (ended or missing):
            continue
        statuses = sorted({file.run_status for file in run.files} - {"finished"})
        if not statuses:
            return []
        told.append(
            f"{name} was {' and '.join(statuses)}: {ended} of its requests end sooner and {missing} are "
            "missing; all that both files hold is equal."
        )
    return told
