"""`dflash bench`: measurements, each imported when it is asked for."""

from __future__ import annotations

import click

from dflash.cli.lazy import Entry, LazyGroup

BENCHMARKS = {
    "kernels": Entry("dflash.cli.bench_kernels:kernels", "The kernels against their peers, on this GPU."),
    "step": Entry("dflash.cli.bench_step:step", "How long drafting and verifying take, as a profile."),
    "replay": Entry("dflash.cli.bench_replay:replay", "Replay against reading, DuckDB and memory."),
    "decode": Entry("dflash.cli.bench_decode:decode", "Tokens a second, plain and speculative, on this GPU."),
    "record": Entry("dflash.cli.bench_record:record", "What recording costs, on against off."),
}


@click.group(cls=LazyGroup, table=BENCHMARKS)
def bench() -> None:
    """Measure the toolkit on this machine, side by side in one process."""
