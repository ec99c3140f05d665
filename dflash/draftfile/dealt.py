"""The requests of a run in the order of its prompts, which were dealt out to its shards one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pyarrow as pa

from dflash.draftfile.reader import DraftFile
from dflash.draftfile.requests import request_starts
from dflash.draftfile.run import Run


def in_order(run: Run) -> Iterator[pa.Table]:
    """One table a request: dealt back from shards, else part after part.

    Where a shard was interrupted, the others go on without it.
    """
    if not all(file.header.raw.get("shard") for file in run.files):
        for file in run.files:
            yield from _requests(file)
        return
    hands = [_prompts(file) for file in run.files]
    while hands:
        left = []
        for hand in hands:
            if (requests := next(hand, None)) is not None:
                yield from requests
                left.append(hand)
        hands = left


def _prompts(file: DraftFile) -> Iterator[list[pa.Table]]:
    """The requests of each prompt; the turns of a conversation follow each other."""
    for _, requests in itertools.groupby(_requests(file), _prompt):
        yield list(requests)


def _prompt(request: pa.Table) -> tuple[bool, str]:
    first = request.slice(0, 1).select(["request_id", "request_info"]).to_pylist()[0]
    conversation = json.loads(first["request_info"]).get("conversation")
    return conversation is not None, first["request_id"] if conversation is None else str(conversation)


def _requests(file: DraftFile) -> Iterator[pa.Table]:
    for group in file.tables():
        starts = [*request_starts(group).tolist(), group.num_rows]
        for start, end in zip(starts, starts[1:], strict=False):
            yield group.slice(start, end - start)
