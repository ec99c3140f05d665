"""Questions of `dflash replay` that are asked alone: options that would change nothing are refused."""

from __future__ import annotations

import click
from click.core import ParameterSource

from dflash.errors import UsageError

_ALWAYS = {"files", "quiet", "verbose"}


def asked_alone(question: str, *allowed: str) -> None:
    """Refuse options of the running command that have no meaning beside `question`.

    Args:
        question: the option that asks.
        allowed: names of the parameters that it takes.

    Raises:
        UsageError: others were given.
    """
    context = click.get_current_context()
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name is not None
        and parameter.name not in {*_ALWAYS, *allowed}
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if question in given:
        given.remove(question)
    if given:
        raise UsageError(f"{question} asks a question of its own; leave out {', '.join(given)}.")
