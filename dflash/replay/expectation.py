"""Expectation of one run: its recorded rounds under several policies, chance integrated out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dflash.draftfile.reader import DraftFile
from dflash.policy.registry import Policy
from dflash.replay.expect import Expect, expect_all
from dflash.replay.rescored import said_of_contexts
from dflash.replay.result import Replay, Source
from dflash.replay.run import recorded_policy, require_within, same


def expectation(
    files: Sequence[DraftFile],
    policies: Sequence[Policy] = (),
    kind: Expect = Expect.COINS,
    *,
    temperature: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Replay:
    """Give what several policies accept on average in the live rounds of a run.

    Args:
        files: of one run, in order.
        policies: none means the recorded one.
        kind: what is integrated out.
        temperature: at which the target judges the recorded drafts, if not the recorded one.
        progress: called after each row group.

    Raises:
        ShapeBeyondRecording: a policy asks for more than was drafted.
        DflashError: what the recording or the rule does not allow; see `expect_all`.
    """
    first = files[0]
    recorded = recorded_policy(first)
    asked = tuple(policies) or (recorded,)
    for policy in asked:
        require_within(policy, recorded.shape)
    rows = expect_all(files, asked, kind, int(recorded.shape.length or 0), temperature, progress)
    marked = [replace(row, recorded=same(policy, recorded)) for policy, row in zip(asked, rows, strict=True)]
    return Replay(
        run_id=first.run_id,
        sources=tuple(Source(str(file.path), file.part, file.content_digest) for file in files),
        recorded=recorded,
        requests=sum(file.requests for file in files),
        rows=said_of_contexts(first, marked),
        check=None,
        cost=None,
    )
