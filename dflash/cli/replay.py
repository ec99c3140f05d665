"""`dflash replay`: re-judge recorded drafts under other policies, or check the recorded decisions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from dflash.cli.options import (
    FiniteFloat,
    files_argument,
    json_option,
    output_option,
    overwrite_option,
    quantisation_option,
    read_pairs,
    say_left_out,
)
from dflash.cli.outcome import Exit
from dflash.cli.output import bar, emit, talk
from dflash.cli.replay_alone import asked_alone
from dflash.cli.replay_audit import audit_files
from dflash.cli.replay_expect import expect_files
from dflash.cli.replay_text import render
from dflash.draftfile.run import Run, open_runs, refuse_as_output
from dflash.errors import UsageError
from dflash.policy.registry import RULES, Policy, parse_policy
from dflash.replay.cost import CostModel
from dflash.replay.cost_source import cost_of
from dflash.replay.details import Wanted
from dflash.replay.expect import Expect
from dflash.replay.result import Replay, document
from dflash.replay.run import recorded_policy, require_walks
from dflash.replay.run import replay as replay_run
from dflash.replay.verdicts import VerdictWriter


@click.command(epilog=f"Rules: {', '.join(sorted(RULES))}. See `dflash policies` for their parameters.")
@files_argument
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME:K=V,...",
    help="Judge by this policy, or that of FILE.toml, not by the recorded one; repeat to compare several.",
)
@click.option(
    "-P",
    "parameters",
    multiple=True,
    metavar="K=V",
    help="Set one parameter of the policy; only with one --policy.",
)
@click.option(
    "--check", is_flag=True, help="Reproduce every recorded decision; exit 1 if one cannot be reproduced."
)
@click.option("--walk", is_flag=True, help="Refuse what can only be re-judged, instead of re-judging it.")
@click.option("--rejudge", is_flag=True, help="Do not walk dense files: re-judge their live rounds.")
@click.option(
    "--expect",
    type=click.Choice([str(kind) for kind in Expect]),
    is_flag=False,
    flag_value=str(Expect.COINS),
    help="Integrate the coins out of every recorded round; `--expect drafts` integrates over the drafts too.",
)
@click.option(
    "--temperature",
    type=FiniteFloat(0.0, 100.0, open_minimum=True),
    help="With --expect: let the target judge the recorded drafts at this temperature.",
)
@click.option(
    "--calibration", is_flag=True, help="How well the drafter's confidence and margin foretell acceptance."
)
@click.option(
    "--cost",
    metavar="fit|PATH",
    callback=say_left_out,
    help="Predict tokens/s and speed-up: `fit` the recorded times, or read a step-time profile (JSON).",
)
@click.option(
    "--audit",
    is_flag=True,
    help="Hold the recording against its own evidence: laws, draws, emitted tokens; exit 1 if one fails.",
)
@click.option(
    "--rescore",
    metavar="MODEL",
    help="Let another target score the stored drafts, and write them with its p to a new file, -o.",
)
@quantisation_option("--target-quant", "the target")
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Processes that share the files of a run.",
)
@output_option("what each policy decided in every round, as Parquet,")
@overwrite_option
@json_option
def replay(
    files: Sequence[Path],
    policies: Sequence[str],
    parameters: Sequence[str],
    check: bool,
    walk: bool,
    rejudge: bool,
    expect: str | None,
    temperature: float | None,
    calibration: bool,
    cost: str | None,
    audit: bool,
    rescore: str | None,
    target_quant: str,
    jobs: int,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Replay draft FILEs under other policies, with no model.

    Live rounds are re-judged, each at its own anchor. Dense files are walked: the rounds are those
    that a live run of the policy would have had, or their law.

    A folder stands for the *.parquet files right inside it. Files of one run are taken
    together, several runs one by one. Without --policy the recorded policy is judged again.
    """
    if audit:
        asked_alone("--audit", "as_json")
        return audit_files(files, as_json)
    if rescore is not None:
        asked_alone("--rescore", "target_quant", "output", "overwrite", "as_json")
        # the only question that needs torch
        from dflash.cli.rescore import rescore_files

        return rescore_files(files, rescore, target_quant, output, overwrite, as_json)
    if target_quant != "none":
        raise UsageError("Expected --target-quant with --rescore MODEL, found it alone.")
    asked = read_policies(policies, parameters)
    if expect is not None:
        asked_alone("--expect", "policies", "parameters", "temperature", "as_json")
        return expect_files(files, asked, Expect(expect), temperature, as_json)
    if temperature is not None:
        raise UsageError("Expected --temperature with --expect, found it alone.")
    runs = open_runs(files)
    if walk and rejudge:
        raise UsageError("Expected --walk or --rejudge, found both.")
    for run in runs:
        if walk:
            require_walks(run.files, asked)
        for file in run.files if check else ():
            file.check_bytes()
    wanted = [Wanted(calibration, _cost(run, cost)) for run in runs]
    results = _all(runs, asked, (check, not rejudge, jobs), wanted, output, overwrite)
    emit(document(results), as_json, lambda console: render(results, console))
    if output is not None:
        talk(f"verdicts: {output}")
    failed = any(result.check is not None and not result.check.passed for result in results)
    return Exit.DIFFERENT if failed else Exit.DONE


def read_policies(texts: Sequence[str], parameters: Sequence[str]) -> list[Policy]:
    """Read `--policy` and `-P`.

    Raises:
        UsageError: -P without exactly one policy, or not as K=V.
    """
    if parameters and len(texts) != 1:
        raise UsageError(f"-P needs exactly one --policy, found {len(texts)}.")
    extra = read_pairs(parameters)
    return [parse_policy(text, extra) for text in texts]


def _cost(run: Run, place: str | None) -> CostModel | None:
    if place is None:
        return None
    return cost_of(run.files, () if place == "fit" else (Path(place),), None)


def _all(
    runs: Sequence[Run],
    asked: Sequence[Policy],
    how: tuple[bool, bool, int],
    wanted: Sequence[Wanted],
    output: Path | None,
    overwrite: bool,
) -> list[Replay]:
    files = [file for run in runs for file in run.files]
    refuse_as_output([output], [file.path for file in files])
    names = [str(policy) for policy in asked] or [str(recorded_policy(run.files[0])) for run in runs]
    digests = [file.content_digest for file in files]
    writer = None if output is None else VerdictWriter(output, digests, names, overwrite=overwrite)
    groups = sum(file.row_groups for file in files)
    with writer or nullcontext(), bar("replay", total=groups) as (progress, task):
        results = [
            replay_run(
                run.files,
                asked,
                check=how[0],
                dense=how[1],
                jobs=how[2],
                verdicts=writer,
                progress=lambda: progress.advance(task),
                wanted=more,
            )
            for run, more in zip(runs, wanted, strict=True)
        ]
        if writer is not None:
            writer.finish()
    return results
