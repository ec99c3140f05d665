"""Options and parameter types that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dflash.cli.output import Level, set_level, talk
from dflash.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
Given = TypeVar("Given", str, Path, Sequence[Path], None)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def say_left_out(context: click.Context, parameter: click.Parameter, given: Given) -> Given:
    """Say which files of the given folders are no draft files but verdicts; a callback of draft files."""
    several: Sequence[str | Path] = [given] if isinstance(given, str | Path) else given or ()
    paths = [Path(path) for path in several]
    if any(path.is_dir() for path in paths):
        # pyarrow takes a while to import, and `--help` does without
        from dflash.draftfile.run import left_out

        if found := left_out(paths):
            names = ", ".join(map(str, found))
            talk(f"left out, verdicts of `replay -o` and no draft files: {names}")
    return given


files_argument = click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE...",
    callback=say_left_out,
)


def output_option(what: str) -> Callable[[Command], Command]:
    """An `-o/--output PATH` option; `what` completes the sentence "Write ... to PATH"."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"Write {what} to PATH.",
        metavar="PATH",
    )


target_option = click.option(
    "--target", default="default", show_default=True, help="Catalogue name, hub id, folder or GGUF file."
)

device_option = click.option(
    "--device", default=None, help="Torch device.  [default: cuda if there is one, else cpu]"
)

dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the target.  [default: float32 on a CPU, else bfloat16]",
)

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")

feature_dtype_option = click.option(
    "--feature-dtype",
    type=click.Choice(["bf16", "int8", "fp8"]),
    help="Of hidden states with --features all; int8 and fp8 have a scale for 128 values.  [default: bf16]",
)


def quantisation_option(flag: str, of: str) -> Callable[[Command], Command]:
    """A choice of weight-only quantisation; `of` says what is quantised."""
    return click.option(
        flag,
        type=click.Choice(["none", "int8", "int4", "fp8"]),
        default="none",
        show_default=True,
        help=f"Weight-only quantisation of {of}; int4 and fp8 need CUDA.",
    )


class FiniteFloat(click.ParamType[float]):
    """A float that is a number: `nan` and `inf` are refused, as is anything outside the bounds.

    Args:
        minimum: Lowest value allowed, or None.
        maximum: Highest value allowed, or None.
        open_minimum: Refuse the minimum itself.
        open_maximum: Refuse the maximum itself.
    """

    name = "number"

    def __init__(
        self,
        minimum: float | None = None,
        maximum: float | None = None,
        *,
        open_minimum: bool = False,
        open_maximum: bool = False,
    ) -> None:
        self.minimum, self.maximum = minimum, maximum
        self.open_minimum, self.open_maximum = open_minimum, open_maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the value, or fail as a usage error that names the bounds."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number) or not self._within(number):
            self.fail(f"{value!r} is not a finite number{self._bounds()}", param, ctx)
        return number

    def _within(self, number: float) -> bool:
        low, high = self.minimum, self.maximum
        above = low is None or number > low or (number == low and not self.open_minimum)
        below = high is None or number < high or (number == high and not self.open_maximum)
        return above and below

    def _bounds(self) -> str:
        low = None if self.minimum is None else f"{'>' if self.open_minimum else '>='} {self.minimum:g}"
        high = None if self.maximum is None else f"{'<' if self.open_maximum else '<='} {self.maximum:g}"
        bounds = " and ".join(bound for bound in (low, high) if bound)
        return f" {bounds}" if bounds else ""


class Whole(click.IntRange):
    """A range of whole numbers that says what it expects of text, and cuts nothing off a number of a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the value, or fail as a usage error that names the bounds."""
        try:
            whole = not isinstance(value, bool) and int(value) == (
                value if isinstance(value, float) else int(value)
            )
        except (TypeError, ValueError, OverflowError):
            whole = False
        if not whole:
            self.fail(f"expected a whole number{self._bounds()}, found {value!r}", param, ctx)
        return super().convert(value, param, ctx)

    def _bounds(self) -> str:
        if self.min is not None and self.max is not None:
            return f" from {self.min} to {self.max}"
        if self.min is not None:
            return f" of {self.min} or more"
        return "" if self.max is None else f" of {self.max} or less"


def tell_bounds(command: click.Command) -> None:
    """Let every option of a command that takes whole numbers say so where it finds something else."""
    for parameter in command.params:
        found = parameter.type
        if type(found) is click.IntRange:
            parameter.type = Whole(found.min, found.max, found.min_open, found.max_open, found.clamp)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            tell_bounds(child)


def add_talk_options(command: click.Command) -> None:
    """Give a command, and all commands below it, -q and -v; done twice it changes nothing more."""
    taken = {flag for parameter in command.params for flag in parameter.opts}
    options = (
        _level_option(["-q", "--quiet"], Level.QUIET, "Say nothing on stderr but warnings and errors."),
        _level_option(["-v", "--verbose"], Level.VERBOSE, "Say more on stderr."),
    )
    command.params += [option for option in options if not taken.intersection(option.opts)]
    if isinstance(command, click.Group):
        for child in command.commands.values():
            add_talk_options(child)


def _level_option(flags: list[str], level: Level, text: str) -> click.Option:
    def remember(context: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            set_level(level)

    # eager: other options' callbacks talk
    return click.Option(flags, is_flag=True, is_eager=True, expose_value=False, callback=remember, help=text)


def read_pairs(texts: Iterable[str]) -> dict[str, str]:
    """The values of a repeated `-P KEY=VALUE`.

    Raises:
        UsageError: One is not of that form, or a key is given twice.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise UsageError(f"Expected -P KEY=VALUE, found {text!r}.")
        if key in pairs:
            raise UsageError(f"Expected -P {key} once, found it given twice.")
        pairs[key] = value
    return pairs
