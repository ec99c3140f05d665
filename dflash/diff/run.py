"""`diff`: compare two runs, by their digests if these are equal, else row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dflash.diff.acceptance import AcceptanceReport, same_report
from dflash.diff.cause import Findings, causes
from dflash.diff.comparison import Comparison
from dflash.diff.identity import differences, same_headers
from dflash.diff.keys import prompt_key
from dflash.diff.ledger import Ledger
from dflash.diff.report import Diff, findings, identity_section, numeric_sections, schema_section
from dflash.diff.requests import Requests
from dflash.diff.settings import ALIGNING, Columns, Settings
from dflash.diff.stream import chunks
from dflash.diff.thresholds import Metric, Threshold
from dflash.diff.tokens import Tokens
from dflash.diff.verdict import Verdict, broken_off, judge
from dflash.draftfile.run import Run


def diff(
    a: Run, b: Run, settings: Settings = Settings(), progress: Callable[[], None] = lambda: None
) -> Diff:
    """Compare two runs.

    Args:
        a: the older one, which differences are taken from.
        progress: called after each row group that is read.

    Raises:
        ColumnNotCompared: a column to ignore that neither run has.
        DataError: a damaged page, or rows that break the format.
    """
    columns = Columns.of(a, b, settings)
    found = _open(a, b, columns, settings)
    if same_files(a, b) and not settings.timing:
        # digests say what was written; only the bytes say what is there
        for file in {file.path.resolve(): file for file in (*a.files, *b.files)}.values():
            file.check_bytes()
        acceptance = _take_summary(found, a)
        return _close(a, b, found, acceptance, columns, "digests")
    read = columns.read(a), columns.read(b)
    for chunk in chunks(a, b, read, found.requests.by, found.requests.left, progress):
        found.add(chunk)
        # the next row group is read before the loop lets go of it
        del chunk
    return _close(a, b, found, found.acceptance.report(), columns, "rows")


def same_files(a: Run, b: Run) -> bool:
    """Whether digests and headers alone show that two runs are identical."""
    digests = [[file.content_digest for file in run.files] for run in (a, b)]
    return digests[0] == digests[1] and same_headers(a.header, b.header)


def _open(a: Run, b: Run, columns: Columns, settings: Settings) -> Comparison:
    names = [name for name in columns.compared if name not in ALIGNING]
    return Comparison(
        a.header,
        b.header,
        settings,
        Ledger.of(names, settings.tolerances, a.header, b.header),
        Requests(a.requests, b.requests, prompt_key(a, b)),
        Tokens(settings.limit),
    )


def _take_summary(found: Comparison, run: Run) -> AcceptanceReport:
    """Fill in what the footers say of two equal runs."""
    summary = run.summary
    rows = summary.rounds + summary.dense_rows
    found.requests.aligned = found.tokens.requests = run.requests
    for count in (found.requests.rows_a, found.requests.rows_b):
        count.total = count.compared = rows
    found.tokens.total = found.tokens.shared = summary.tokens_emitted
    found.decisions.requests = found.decisions.same_end = run.requests
    return same_report(tuple(summary.lengths), run.requests)


def _close(
    a: Run, b: Run, found: Comparison, acceptance: AcceptanceReport, columns: Columns, read: str
) -> Diff:
    settings, headers = found.settings, differences(a.header, b.header)
    noise = any(difference.key == "tokenizer.digest" for difference in headers)
    cut = [] if noise else broken_off(found, a, b)
    if read == "digests":
        verdict = Verdict.IDENTICAL
    elif cut:
        verdict = Verdict.SHORTER
    else:
        verdict = judge(found, acceptance, same_headers(a.header, b.header) and not columns.differ, not noise)
    metrics = _metrics(found, acceptance, read == "digests")
    unknown = Metric(0.0, 0.0) if verdict is Verdict.IDENTICAL else Metric(None, None)
    judged = [threshold.judge(_measured(metrics, threshold, unknown)) for threshold in settings.thresholds]
    code = verdict.exit_code
    if judged and verdict is not Verdict.UNALIGNED:
        code = int(any(judgement.failed for judgement in judged))
    return Diff(
        a=a,
        b=b,
        verdict=verdict,
        exit_code=code,
        summary=_summary(verdict, found, acceptance, a, b),
        causes=[*cut, *_causes(verdict, found, headers, noise, acceptance)],
        read=read,
        asked=_asked(settings),
        sections={
            "identity": identity_section(headers, found.infos.to_dict()),
            "schema": schema_section(columns, found.ledger),
            **numeric_sections(found, acceptance, settings.limit, noise, read == "digests"),
        },
        metrics=metrics,
        thresholds=judged,
    )


def _causes(
    verdict: Verdict, found: Comparison, headers: list[Any], noise: bool, acceptance: AcceptanceReport
) -> list[str]:
    if verdict is Verdict.IDENTICAL:
        return []
    if verdict is Verdict.SHORTER:
        return causes(headers, Findings())
    if verdict is not Verdict.UNALIGNED:
        return causes(headers, findings(found, acceptance.tau))
    return causes(headers, findings(found)) if noise else []


def _metrics(found: Comparison, acceptance: AcceptanceReport, identical: bool) -> dict[str, Metric]:
    """Every number that a threshold can be set on; of identical files those that only rows could tell too."""
    kl, top1 = found.probabilities.kl.mean, found.probabilities.same_top1
    if identical:
        kl, top1 = 0.0, 1.0
    return {
        "tau": Metric(acceptance.tau.a, acceptance.tau.b),
        **{f"accept@{i + 1}": Metric(shift.a, shift.b) for i, shift in enumerate(acceptance.positions)},
        "kl_mean": Metric(None if kl is None else 0.0, kl),
        "same_top1": Metric(None if top1 is None else 1.0, top1),
        "tokens": found.tokens.metric,
    }


def _asked(settings: Settings) -> dict[str, Any]:
    tolerances = settings.tolerances
    return {
        "on": str(settings.on),
        "atol": {"": tolerances.atol, **tolerances.atol_of},
        "rtol": {"": tolerances.rtol, **tolerances.rtol_of},
        "ignore": sorted(settings.ignore),
        "timing": settings.timing,
        "fail_on": [threshold.text for threshold in settings.thresholds],
    }


def _summary(verdict: Verdict, found: Comparison, acceptance: AcceptanceReport, a: Run, b: Run) -> str:
    if verdict is Verdict.UNALIGNED:
        by = f"{found.requests.by} of the prompts"
        return (
            f"No request of A ({a.requests}) has a partner among those of B ({b.requests}): "
            f"they are aligned by the {by}, and no prompt is in both files."
        )
    parts = [f"{found.requests.aligned} of {a.requests} requests in A and of {b.requests} in B aligned"]
    if verdict in (Verdict.DRIFTED, Verdict.DIFFERENT):
        parted = found.tokens.parted
        parts.append(f"{parted or 'none'} of them part{'s' if parted < 2 else ''}")
    tau = acceptance.tau
    if tau.a is not None and tau.b is not None:
        moved = (
            ""
            if tau.difference_interval is None
            else " (95 % {:+.3f} to {:+.3f})".format(*tau.difference_interval)
        )
        parts.append(f"tau {tau.a:.3f} in A, {tau.b:.3f} in B, {tau.b - tau.a:+.3f}{moved}")
    return "; ".join(parts) + "."


def _measured(metrics: Mapping[str, Metric], threshold: Threshold, unknown: Metric) -> Metric:
    metric = metrics.get(threshold.metric, unknown)
    return unknown if metric.change is None else metric
