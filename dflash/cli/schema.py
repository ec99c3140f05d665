"""`dflash schema`: the columns of the draft-file format, from the table that defines them."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import json_option
from dflash.cli.output import emit
from dflash.draftfile.columns import COLUMNS, FORMAT_VERSION
from dflash.draftfile.footer import CAPABILITIES
from dflash.draftfile.header_codec import header_schema


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """Show the columns of a draft file: names, field ids, types, units, meanings.

    With --json, the column table and the JSON Schema of the header.
    """
    document = {
        "schema": "dflash.schema/1",
        "format_version": FORMAT_VERSION,
        "capabilities": list(CAPABILITIES),
        "columns": [asdict(column) for column in COLUMNS],
        "header": header_schema(),
    }
    emit(document, as_json, render)


def render(console: Console) -> None:
    """Prints the table, one line a column, grouped."""
    table = Table(
        title=f"Draft file, format {FORMAT_VERSION}", title_justify="left", box=None, pad_edge=False
    )
    for name in ("column", "id", "type", "per", "unit"):
        table.add_column(name, no_wrap=name in ("column", "id", "type"))
    table.add_column("meaning", ratio=1)
    group = None
    for column in COLUMNS:
        if column.group != group:
            group = column.group
            table.add_row()
            table.add_row(group, style="bold")
        kind = column.type + ("" if column.nullable else "!")
        table.add_row(column.name, str(column.field_id), kind, column.per, column.unit or "", column.meaning)
    console.print(table)
    console.print(
        "\n! never null. The elements of a list have the field id + 1000. Your own columns start with x_."
    )
