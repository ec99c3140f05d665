"""`dflash bench replay`: replay against reading and against DuckDB, and its peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import FiniteFloat, json_option
from dflash.cli.output import emit, talk
from dflash.cli.policy_cell import counted

if TYPE_CHECKING:
    from dflash.bench.replay import Compared, Many

WITHOUT_COINS = ("match", "greedy", "threshold:t=0.4")
WITH_COINS = ("speculative", "block")


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(100, 100_000_000),
    default=1_000_000,
    show_default=True,
    help="Rounds of chains of 8, live in one file and dense in another.",
)
@click.option(
    "--pairs", type=click.IntRange(1, 100), default=5, show_default=True, help="Of every comparison."
)
@click.option(
    "--policies",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Policies to re-judge in one reading.",
)
@click.option(
    "--feature-gb",
    type=FiniteFloat(0.0, 1000.0),
    default=5.0,
    show_default=True,
    help="Size of a file with features, whose peak memory is measured; 0 leaves that out.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the files are made; a temporary folder unless given. They are deleted at the end.",
)
@json_option
def replay(
    rounds: int, pairs: int, policies: int, feature_gb: float, folder: Path | None, as_json: bool
) -> None:
    """Make draft files and replay them, in interleaved pairs with the yardsticks, in one process."""
    from dflash.bench.replay import against_duckdb, against_read, cores, many
    from dflash.bench.replay_files import Made, write

    with TemporaryDirectory(dir=folder) as place:
        talk(f"making {rounds:,} live and {rounds:,} dense rounds")
        live = write(Path(place) / "live.parquet", Made(rounds))
        dense = write(Path(place) / "dense.parquet", Made(rounds, dense=True))
        found: list[Compared] = []
        for names, limit in ((WITHOUT_COINS, 2.0), (WITH_COINS, 4.0)):
            for name in names:
                talk(f"re-judging under {name}")
                found.append(against_read(live, name, limit, pairs))
        talk("walking the dense rounds under match")
        walk = against_read(dense, "match", 6.0, pairs)
        talk("asking DuckDB")
        query = against_duckdb(live, 3.0, pairs)
        talk(f"re-judging under {policies} policies")
        swept = many(live, policies)
        live.unlink()
        dense.unlink()
        memory = _memory(Path(place), feature_gb) if feature_gb else None
    document = {
        "schema": "dflash.bench_replay/1",
        "rounds": rounds,
        "cores": cores(),
        "rejudged": [_plain(item) for item in found],
        "walked": _plain(walk),
        "duckdb": None if query is None else _plain(query),
        "many": asdict(swept),
        "memory": memory,
    }
    emit(document, as_json, lambda console: _render(console, found, walk, query, swept, memory))


def _memory(place: Path, gigabytes: float) -> dict[str, int]:
    """Peak memory of a replay of a file with features, a row of which takes 5,400 bytes."""
    from dflash.bench.replay import peak_bytes
    from dflash.bench.replay_files import Made, write

    talk(f"making {gigabytes:g} GB with features")
    path = place / "features.parquet"
    made = Made(max(100, int(gigabytes * 1e9 / 5800)), feature_bytes=5400)
    size = write(path, made).stat().st_size
    return {"file_bytes": size, "peak_bytes": peak_bytes(path, "match"), "limit_bytes": 600_000_000}


def _plain(item: Compared) -> dict[str, Any]:
    return {
        "policy": item.policy,
        "yardstick": item.yardstick,
        "columns": list(item.columns),
        "pairs": [{"yardstick": asdict(theirs), "replay": asdict(ours)} for theirs, ours in item.pairs],
        "ratio_median": item.ratio,
        "cpu_ratio_median": item.cpu_ratio,
        "limit": item.limit,
    }


def _render(
    console: Console,
    found: Sequence[Compared],
    walk: Compared,
    query: Compared | None,
    swept: Many,
    memory: dict[str, int] | None,
) -> None:
    table = Table("question", "against", "s", "replay, s", "ratio", "of CPU time", "goal")
    named = [("re-judge", item) for item in found] + [("walk", walk)]
    for what, item in [*named, *([] if query is None else [("re-judge", query)])]:
        theirs, ours = (min(pair[side].wall for pair in item.pairs) for side in (0, 1))
        table.add_row(
            f"{what} {item.policy}",
            item.yardstick,
            f"{theirs:.3f}",
            f"{ours:.3f}",
            f"{item.ratio:.2f}",
            f"{item.cpu_ratio:.2f}",
            f"<= {item.limit:g}",
        )
    console.print(table)
    if query is None:
        console.print("DuckDB is not installed: pip install dflash-toolkit[query]")
    console.print(
        f"{swept.policies} policies: the file was read {counted(swept.readings, 'time')}, "
        f"{swept.seconds.wall:.1f} s"
    )
    if memory is not None:
        console.print(
            f"peak memory on a file of {memory['file_bytes'] / 1e9:.2f} GB with features: "
            f"{memory['peak_bytes'] / 1e6:.0f} MB (goal: {memory['limit_bytes'] / 1e6:.0f} MB)"
        )
    console.print("s: the fastest pair; ratio: median over pairs of replay's time to the yardstick's")
