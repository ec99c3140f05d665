"""`dflash info`: what draft files hold, from their footers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dflash.cli.options import files_argument, json_option
from dflash.cli.output import complain, emit
from dflash.cli.policy_cell import counted
from dflash.draftfile.canonical import EXACT_INTEGERS
from dflash.draftfile.errors import DraftFileError
from dflash.draftfile.other_settings import REQUESTS
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.run import draft_paths
from dflash.draftfile.summary import Summary, merged
from dflash.errors import DflashError
from dflash.policy.registry import Policy

Json = dict[str, Any]
_STEP_TIMES = "step_time_profile"


@click.command()
@files_argument
@json_option
def info(files: Sequence[Path], as_json: bool) -> None:
    """Show what draft files hold: identities, counts, tau, sizes, how the run ended.

    Reads only the footers, so it is instant on files of any size. A folder stands for
    the *.parquet files right inside it. A file that cannot be read costs none of the others
    (with --json all of them) and gives exit code 2.
    """
    found, refused = opened(files)
    if found and not (as_json and refused):
        emit(
            {"schema": "dflash.info/1", "files": found, "total": total(found)},
            as_json,
            lambda console: render(found, console),
        )
    for error in refused[:-1]:
        complain(str(error))
    if refused:
        raise refused[-1]


def opened(files: Sequence[Path]) -> tuple[list[Json], list[DraftFileError]]:
    """The facts of every file that can be read, and what is wrong with the others."""
    paths, found, refused = dict[Path, None](), list[Json](), list[DraftFileError]()
    for given in files:
        with _noted(refused):
            paths |= dict.fromkeys(draft_paths([given]))
    for path in paths:
        with _noted(refused):
            found.append(describe(open_draft_file(path)))
    return found, refused


@contextmanager
def _noted(refused: list[DraftFileError]) -> Iterator[None]:
    try:
        yield
    except DraftFileError as error:
        refused.append(error)


def describe(file: DraftFile) -> Json:
    """The facts of one file, as the JSON document has them."""
    summary = Summary.from_dict(file.summary)
    return {
        "path": str(file.path),
        "run_id": file.run_id,
        "part": file.part,
        "parts": file.parts,
        "run_status": file.run_status,
        "lost": file.lost,
        "content_digest": file.content_digest,
        "capabilities": list(file.capabilities),
        "rows": file.rows,
        "requests": file.requests,
        "row_groups": file.row_groups,
        "size_bytes": file.size,
        "column_bytes": file.column_sizes(),
        "summary": summary.to_dict(),
        "tau": summary.tau,
        "other_settings": None if file.other_settings is None else dict(file.other_settings),
        "header": exact(file.header.raw),
    }


def total(files: Sequence[Json]) -> Json:
    """All files together; counts add up, tau is taken over all rounds."""
    summary = merged(Summary.from_dict(file["summary"]) for file in files)
    return {
        "files": len(files),
        "rows": sum(file["rows"] for file in files),
        "requests": sum(file["requests"] for file in files),
        "size_bytes": sum(file["size_bytes"] for file in files),
        "summary": summary.to_dict(),
        "tau": summary.tau,
    }


def exact(value: Any) -> Any:
    """The value with integers that JSON readers would round as strings."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) > EXACT_INTEGERS else value


def render(files: Sequence[Json], console: Console) -> None:
    """Prints one block a file, and a line for all of them if there are several."""
    for number, file in enumerate(files):
        if number:
            console.print()
        console.print(_block(file), soft_wrap=True)
    if len(files) > 1:
        every = total(files)
        console.print()
        console.print(
            f"{len(files)} files: {counted(every['requests'], 'request')}, "
            f"{counted(every['summary']['rounds'], 'round')}, "
            f"tau {_number(every['tau'])}, {_bytes(every['size_bytes'])}"
        )


def _block(file: Json) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (*_facts(file), *_identities(file), *_counts(file)):
        table.add_row(name, text)
    return table


def _facts(file: Json) -> list[tuple[str, str]]:
    part = (
        f", part {file['part']}" + (f" of {file['parts']}" if file["parts"] else "")
        if file["parts"] != 1
        else ""
    )
    lost = [("lost", str(file["lost"]))] if file["lost"] is not None else []
    return [
        ("file", file["path"]),
        ("run", f"{file['run_id']}{part}, {file['run_status']}, {file['header']['created_at']}"),
        *lost,
        ("digest", file["content_digest"]),
        ("size", f"{_bytes(file['size_bytes'])}, {counted(file['row_groups'], 'row group')}"),
        ("columns", ", ".join(f"{name} {_bytes(size)}" for name, size in file["column_bytes"].items())),
    ]


def _identities(file: Json) -> list[tuple[str, str]]:
    header = file["header"]
    sampling = ", ".join(f"{key} {value}" for key, value in header["sampling"].items() if value is not None)
    shape = header["shape"]
    return [
        ("target", _model(header["target"])),
        *[("drafter", f"{_model(drafter)}, {drafter['proposal']}") for drafter in header["drafters"]],
        ("tokenizer", f"{header['tokenizer']['digest'][:12]}, {header['tokenizer']['vocab_size']} tokens"),
        ("sampling", f"{sampling}, seed {header['seed']}{_others(file['other_settings'])}"),
        ("policy", _policy(header["policy"])),
        (
            "shape",
            f"length {shape['length']}, branches {shape['branches']}{', dense' if header['dense'] else ''}",
        ),
        ("features", _features(header["features"])),
        ("engine", _engine(header["engine"])),
    ]


def _others(counts: Json | None) -> str:
    """How many requests ran under settings of their own, and in what they differ."""
    names = [name for name in counts or {} if name != REQUESTS]
    if counts is None or not names:
        return ""
    differ = "differs" if counts[REQUESTS] == 1 else "differ"
    return f"; {counted(counts[REQUESTS], 'request')} {differ} ({', '.join(names)})"


def _counts(file: Json) -> list[tuple[str, str]]:
    summary = file["summary"]
    shares = (
        [f"{count / summary['rounds']:.2f}" for count in summary["accepted"]] if summary["rounds"] else []
    )
    return [
        ("requests", f"{file['requests']}, {counted(summary['prompt_tokens'], 'prompt token')}"),
        ("rows", _rows(file["rows"], summary)),
        ("emitted", counted(summary["tokens_emitted"], "token")),
        ("tau", f"{_number(file['tau'])} (accepted nodes + 1 per live round, before truncation)"),
        ("accepted", " ".join(shares) + " of the live rounds, by position" if shares else "-"),
        (
            "ended by",
            ", ".join(f"{name} {count}" for name, count in sorted(summary["truncations"].items())) or "-",
        ),
    ]


def _rows(rows: int, summary: Json) -> str:
    """All rows by kind; every request has one prefill."""
    prefills, rounds, dense = (summary[name] for name in ("requests", "rounds", "dense_rows"))
    features = rows - prefills - rounds - dense
    return f"{rows}: {counted(prefills, 'prefill')}, {counted(rounds, 'live round')}, {dense} dense, " + (
        f"{features} of prompts' hidden states"
    )


def _engine(engine: Json) -> str:
    """What ran; of step times only that they were given."""
    given = [f"{key} {value}" for key, value in engine.items() if key != _STEP_TIMES and value is not None]
    return ", ".join([*given, *(["step times given"] if engine.get(_STEP_TIMES) else [])])


def _model(model: Json) -> str:
    quantisation = model["quantisation"] and model["quantisation"]["method"]
    digest = model["weights_digest"] and f"weights {model['weights_digest'][:12]}"
    parts = [model["name"], model["revision"], model["dtype"], quantisation, digest]
    return ", ".join(str(part) for part in parts if part)


def _features(features: Json) -> str:
    """What is kept of hidden states, how, and of which of them."""
    taps = [str(tap["hidden_states"]) for tap in features.get("taps", ())]
    of = f"hidden_states {', '.join(taps)}" if taps else None
    return ", ".join(filter(None, [features["mode"], features.get("encoding"), of]))


def _policy(policy: Json) -> str:
    """The short form, or the header's own words for a policy that this version does not know."""
    try:
        return str(Policy.from_dict(policy))
    except DflashError:
        return ", ".join(f"{name}: {_flat(part)}" for name, part in policy.items() if part)


def _flat(part: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in part.items()) if isinstance(part, dict) else str(part)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
