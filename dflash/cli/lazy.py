"""A group of commands that imports a command only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from dflash.cli.options import add_talk_options, tell_bounds
from dflash.cli.settings import did_you_mean, name_variables
from dflash.errors import UsageError


class Entry(NamedTuple):
    """One line of a table of commands.

    Attributes:
        home: Where the click command lives, `module:name`.
        summary: What it does in a few words, for the list.
    """

    home: str
    summary: str


class NoSuchCommand(UsageError):
    """A command that the table does not have."""


class LazyGroup(click.Group):
    """Finds commands in a table by name, imports the one that runs, and gives it -q and -v."""

    def __init__(self, *args: Any, table: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or None if the table has no such name."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name].home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        add_talk_options(command)
        tell_bounds(command)
        name_variables(command, f"{ctx.auto_envvar_prefix}_{cmd_name}".upper())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and offer the nearest name for one that is not there."""
        if args and args[0] not in self.table:
            hint = did_you_mean(args[0], self.table)
            raise NoSuchCommand(f"There is no command `{ctx.command_path} {args[0]}`.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])
