"""A tiny target, and recordings of it in one call."""

from __future__ import annotations

from pathlib import Path

import device_runs
import pytest
from tiny_fixtures import tiny, tiny_folder

from dflash.draftfile.reader import open_draft_file
from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.policy.registry import parse_policy
from dflash.target.sampling import Sampling

__all__ = ["tiny", "tiny_folder"]


@pytest.fixture(scope="module")
def target(tiny):
    """The tiny target, as rounds on the device take it."""
    return device_runs.native_target(tiny)


@pytest.fixture(scope="module")
def drafter(target, tmp_path_factory):
    """A random drafter of it, as `--drafter` names it."""
    return device_runs.write_drafter(target, tmp_path_factory.mktemp("drafter"), "dspark")


@pytest.fixture
def by_reference(monkeypatch):
    """Native steps of sessions run in PyTorch."""
    device_runs.by_reference(monkeypatch)


@pytest.fixture
def record(tmp_path):
    """record(target, prompts, **settings) -> rows of the draft file, as dictionaries in file order."""
    count = 0

    def run(target, prompts=("What is a rainbow?",), *, path: Path | None = None, **given):
        nonlocal count
        count += 1
        output = path or tmp_path / f"run{count}.parquet"
        sampling = Sampling(given.pop("temperature", 0.0), given.pop("top_k", 0), given.pop("top_p", 1.0))
        defaults = Defaults(
            sampling=sampling,
            seed=given.pop("seed", 7),
            max_new_tokens=given.pop("max_new_tokens", 40),
            stop=given.pop("stop", ()),
            raw=given.pop("raw", False),
        )
        settings = RecordSettings(
            output=output,
            drafter=given.pop("drafter", "ngram"),
            policy=parse_policy(given.pop("policy", "match")),
            defaults=defaults,
            length=given.pop("length", 5),
            branches=given.pop("branches", 3),
            **given,
        )
        session = Session(target, settings)
        entries = with_ids(text_prompt(p) if isinstance(p, str) else p for p in prompts)
        session.record(session.conversations(entries, check=True))
        file = open_draft_file(output)
        return [row for table in file.tables() for row in table.to_pylist()]

    return run


def outputs(rows):
    """Committed tokens by request, recounted from the columns alone."""
    found = {}
    for row in rows:
        if row["kind"] in (0, 2):
            path = [row["node_token"][node] for node in row["accepted_nodes"]]
            found.setdefault(row["request_id"], []).extend([*path, row["bonus_token"]][: row["emitted"]])
    return found


@pytest.fixture
def output_tokens():
    return outputs
