"""The one word that a comparison comes to, and the exit code it means."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dflash.diff.acceptance import AcceptanceReport
from dflash.diff.comparison import Comparison


class Verdict(StrEnum):
    """What two files are to each other."""

    IDENTICAL = "identical"
    EQUAL = "equal within tolerance"
    SAME_LAW = "same law"
    DRIFTED = "drifted, acceptance unchanged"
    DIFFERENT = "different"
    UNALIGNED = "no aligned request"

    @property
    def exit_code(self) -> int:
        return {Verdict.DRIFTED: 1, Verdict.DIFFERENT: 1, Verdict.UNALIGNED: 2}.get(self, 0)


MEANINGS: Mapping[Verdict, str] = {
    Verdict.IDENTICAL: "every value compared is the same, and so are the headers but for time and place",
    Verdict.EQUAL: "tokens, drafts and decisions are the same, and no number lies beyond the tolerance",
    Verdict.SAME_LAW: "as before, but for raw logits, whose log p are within the tolerance",
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
