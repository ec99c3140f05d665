"""The `dflash` command: its table of commands, its own options, and how one command line is run."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import shell_complete

from dflash import __version__
from dflash.cli.lazy import Entry, LazyGroup
from dflash.cli.outcome import Exit, exit_code
from dflash.cli.settings import SETTINGS_FILE, by_parameter, read_settings

_COMPLETION = "_DFLASH_COMPLETE"


COMMANDS: Mapping[str, Entry] = {
    "record": Entry("dflash.cli.record:record", "Record drafts on live prompts."),
    "replay": Entry("dflash.cli.replay:replay", "Re-judge recorded drafts under other policies."),
    "tune": Entry("dflash.cli.tune:tune", "Find the policy to run, by replaying many on one recording."),
    "plan": Entry("dflash.cli.plan:plan", "Predict tau, speed-up and memory by the plain formulas."),
    "diff": Entry("dflash.cli.diff:diff", "Compare two draft files: what drifted, and the likely cause."),
    "info": Entry("dflash.cli.info:info", "Show what draft files hold, from the footer alone."),
    "cat": Entry("dflash.cli.cat:cat", "Print recorded rounds: trees as text, ndjson or csv."),
    "doctor": Entry("dflash.cli.doctor:doctor", "Examine draft files for every kind of damage."),
    "recover": Entry("dflash.cli.recover:recover", "Make a draft file of a broken recording's journal."),
    "train": Entry("dflash.cli.train:train", "Train a drafter, from the target's own words or recordings."),
    "models": Entry("dflash.cli.models:models", "List, fetch and remove target models."),
    "policies": Entry("dflash.cli.policies:policies", "List acceptance rules and their parameters."),
    "schema": Entry("dflash.cli.schema:schema", "Show the columns of the draft-file format."),
    "env": Entry("dflash.cli.env:env", "Show versions, devices and folders in use."),
    "bench": Entry("dflash.cli.bench:bench", "Measure the toolkit on this machine."),
}


class _Toolkit(LazyGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            settings = by_parameter(name, command, (ctx.default_map or {}).get(name, {}))
            ctx.default_map = {**(ctx.default_map or {}), name: settings}
        return name, command, rest


def _use_settings(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is not None or Path(SETTINGS_FILE).is_file():
        context.default_map = read_settings(path or Path(SETTINGS_FILE), COMMANDS)


@click.group(
    cls=_Toolkit,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done or same; 1 different or a check failed; 2 usage or unreadable input; "
    "3 finished but data was lost; 130 interrupted; 141 closed pipe; 143 terminated.",
)
@click.version_option(__version__, prog_name="dflash", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option(
    "--settings",
    type=click.Path(path_type=Path, dir_okay=False),
    expose_value=False,
    is_eager=True,
    callback=_use_settings,
    help=f"Read defaults from this TOML file instead of ./{SETTINGS_FILE}.",
)
def app() -> None:
    """Record, replay and audit the drafts of speculative decoding."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Args:
        arguments: The words after `dflash`.

    Returns:
        The exit code; see `dflash.cli.outcome.Exit`.
    """
    words, debug = _take_debug(arguments)
    try:
        code = _invoke(words)
        sys.stdout.flush()
        return code
    except BaseException as error:
        if debug and not isinstance(error, SystemExit | click.exceptions.Exit | BrokenPipeError):
            traceback.print_exc()
        return exit_code(error)


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    given = "--debug" in words[:end]
    return [word for word in words[:end] if word != "--debug"] + words[
        end:
    ], given or "DFLASH_DEBUG" in os.environ


def _invoke(words: list[str]) -> int:
    if instruction := os.environ.get(_COMPLETION):
        return shell_complete(app, {}, "dflash", _COMPLETION, instruction)
    with app.make_context("dflash", words, auto_envvar_prefix="DFLASH") as context:
        outcome = app.invoke(context)
    return outcome if isinstance(outcome, int) else Exit.DONE
