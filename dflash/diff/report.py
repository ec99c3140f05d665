"""The document of a comparison: sections, metrics, thresholds, verdict; schema `dflash.diff/1`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.diff.acceptance import DEFINITIONS as ACCEPTANCE
from dflash.diff.acceptance import AcceptanceReport, Shift
from dflash.diff.cause import Findings
from dflash.diff.comparison import Comparison
from dflash.diff.features import comparable_features
from dflash.diff.identity import VOLATILE_KEYS, Difference
from dflash.diff.ledger import Ledger, to_dict
from dflash.diff.probability import DEFINITIONS as PROBABILITY
from dflash.diff.settings import Columns
from dflash.diff.shapes import CUT_COLUMNS, redrawn
from dflash.diff.thresholds import METRICS, Judgement, Metric
from dflash.diff.verdict import MEANINGS, Verdict
from dflash.draftfile.canonical import EXACT_INTEGERS
from dflash.draftfile.run import Run

SCHEMA = "dflash.diff/1"
COLUMN_SECTIONS = ("requests", "tokens", "drafts", "probabilities", "features", "decisions")
DEFINITIONS: Mapping[str, str] = {
    **ACCEPTANCE,
    **PROBABILITY,
    "compared": "values whose context, every token before them, is the same in both files",
    "tolerance": "|a - b| <= atol + rtol * max(|a|, |b|); 1e-4 each, 100 times as much "
    "if a model computes in 16 bits",
    "near_tie": "the first difference of a request where slot_gap is under the header's tie tolerance "
    "(over the temperature, above 0) in one of the files",
    **{f"metric {name}": meaning for name, meaning in METRICS.items()},
    **{f"verdict {verdict}": meaning for verdict, meaning in MEANINGS.items()},
}


@dataclass(frozen=True, slots=True)
class Diff:
    """What `dflash diff` says.

    Attributes:
        verdict: of the files.
        exit_code: of the verdict, or of the thresholds if there are any.
        summary: one sentence.
        causes: likely causes, the weightiest first.
        read: "digests" if the footers were enough, else "rows".
        sections: by name, in order; None for timing that was not asked for.
    """

    a: Run
    b: Run
    verdict: Verdict
    exit_code: int
    summary: str
    causes: Sequence[str]
    read: str
    asked: Mapping[str, Any]
    sections: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    thresholds: Sequence[Judgement] = field(default=())

    def document(self) -> dict[str, Any]:
        """Return the document as JSON has it."""
        return {
            "schema": SCHEMA,
            "a": _run(self.a),
            "b": _run(self.b),
            "asked": dict(self.asked),
            "verdict": str(self.verdict),
            "exit_code": self.exit_code,
            "summary": self.summary,
            "causes": list(self.causes),
            "read": self.read,
            "sections": exact_integers(dict(self.sections)),
            "metrics": {
                name: {**metric._asdict(), "change": metric.change} for name, metric in self.metrics.items()
            },
            "thresholds": [judgement.to_dict() for judgement in self.thresholds],
            "definitions": dict(DEFINITIONS),
        }


def identity_section(differences: Iterable[Difference], infos: Mapping[str, Any]) -> dict[str, Any]:
    """Header and request settings."""
    found = [difference._asdict() for difference in differences]
    status = "differs" if found or infos else "same"
    return {"status": status, "header": found, "requests": dict(infos), "volatile": list(VOLATILE_KEYS)}


def schema_section(columns: Columns, ledger: Ledger) -> dict[str, Any]:
    """Columns of one side only, left out, and user columns that changed."""
    status = "differs" if columns.differ or any(c.changed for c in ledger.of_section("schema")) else "same"
    return {"status": status, **columns.to_dict(), "columns": column_rows(ledger, "schema")}


def numeric_sections(
    found: Comparison, acceptance: AcceptanceReport, limit: int, noise: bool, identical: bool
) -> dict[str, Any]:
    """All sections that are read from rows.

    Args:
        noise: the tokenizers differ.
        identical: the digests were enough.
    """
    requests = found.requests
    facts: dict[str, tuple[dict[str, Any], bool]] = {
        "requests": (requests.to_dict(limit), not (requests.all_aligned and requests.all_compared)),
        "tokens": (found.tokens.to_dict(), found.tokens.differ),
        "drafts": (found.drafts.to_dict(), found.drafts.differ),
        "probabilities": (found.probabilities.to_dict(), False),
        "features": (found.features.to_dict(), False),
        "decisions": (found.decisions.to_dict(), found.decisions.same_end != found.decisions.requests),
    }
    sections: dict[str, Any] = {}
    for name, (numbers, differs) in facts.items():
        status = _status(found.ledger, name, differs)
        if status == "same" and not identical and not _seen(found)[name]:
            status = "not compared"
        sections[name] = {
            "status": "noise" if noise and name != "requests" else status,
            **numbers,
            "columns": column_rows(found.ledger, name),
        }
    sections["features"]["not_compared"] = comparable_features(found.a, found.b)
    if sections["features"]["not_compared"]:
        sections["features"]["status"] = "not compared"
    status = acceptance_status(acceptance)
    if not (identical or acceptance.rounds_a or acceptance.rounds_b):
        status = "not compared"
    sections["acceptance"] = {"status": status, **acceptance.to_dict()}
    timed = {"timers": found.timing.to_dict(), "columns": column_rows(found.ledger, "timing")}
    sections["timing"] = timed if found.settings.timing else None
    return sections


def _seen(found: Comparison) -> dict[str, int]:
    """How much each section could compare."""
    probabilities = found.probabilities
    return {
        "requests": found.requests.aligned,
        "tokens": found.requests.aligned,
        "drafts": found.drafts.rows,
        "probabilities": probabilities.top1 + probabilities.kl.count,
        "features": found.features.cosine.count,
        "decisions": found.decisions.rounds,
    }


def column_rows(ledger: Ledger, section: str) -> list[dict[str, Any]]:
    """The columns of a section in which anything changed."""
    return [
        to_dict(change, ledger.tolerances.get(change.name))
        for change in ledger.of_section(section)
        if change.changed or change.beyond
    ]


def acceptance_status(acceptance: AcceptanceReport) -> str:
    if acceptance.lengths_a == acceptance.lengths_b:
        return "same"
    return "unchanged" if acceptance.unchanged else "differs"


def findings(found: Comparison, tau: Shift | None = None) -> Findings:
    """What causes can be told from."""
    tokens, ledger = found.tokens, found.ledger
    sections = {name: ledger.of_section(name) for name in COLUMN_SECTIONS}
    target = any(change.beyond_law for change in sections["probabilities"])
    drafts = {change.name for change in sections["drafts"] if change.beyond_law}
    differ = found.drafts.differ or bool(drafts)
    cut = found.drafts.only_cut and drafts <= CUT_COLUMNS
    return Findings(
        drafts=differ,
        cut=cut,
        redrawn=differ and not cut and redrawn(found.a, found.b),
        target=target,
        shifted=ledger.beyond and not ledger.beyond_law,
        tokens=tokens.differ,
        near_ties=0 < tokens.parted == tokens.near_ties,
        infos=tuple(found.infos.counts),
        prompts=tokens.other_prompts > 0,
        decisions=any(change.beyond for change in sections["decisions"]),
        tau=tau,
    )


def exact_integers(value: Any) -> Any:
    """The value with integers that JSON readers would round as strings."""
    if isinstance(value, dict):
        return {key: exact_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact_integers(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) > EXACT_INTEGERS else value


def _status(ledger: Ledger, section: str, differs: bool) -> str:
    changes = ledger.of_section(section)
    if differs or any(change.beyond_law for change in changes):
        return "differs"
    if any(change.beyond for change in changes):
        return "same law"
    return "within tolerance" if any(change.changed for change in changes) else "same"


def _run(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "files": [{"path": str(file.path), "content_digest": file.content_digest} for file in run.files],
        "run_status": sorted({file.run_status for file in run.files}),
        "requests": run.requests,
        "rows": run.rows,
        "target": run.header.target["name"],
        "drafters": [drafter["name"] for drafter in run.header.drafters],
    }
