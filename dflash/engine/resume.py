"""A conversation whose first requests may have been recorded already."""

from __future__ import annotations

import pyarrow as pa

from dflash.engine.lane import Lane
from dflash.engine.loop import Conversation
from dflash.engine.recorder.choice import AnyRecorder
from dflash.engine.request import Request
from dflash.target.load import Target


class ResumedConversation:
    """Hands the recorder what an earlier recording has, and the engine the requests after it."""

    def __init__(self, conversation: Conversation, recorder: AnyRecorder, target: Target) -> None:
        self.order = conversation.order
        self._conversation = conversation
        self._recorder = recorder
        self._target = target

    def next(self, answer: str | None) -> Request | None:
        """The next request that must be run, or None at the end."""
        request = self._conversation.next(answer)
        while request is not None and (table := self._recorder.take_kept(request)) is not None:
            request = self._conversation.next(self._answer(request, table))
        return request

    def _answer(self, request: Request, table: pa.Table) -> str:
        lane = Lane.start(0, request, self._target.eos, self._target.tokenizer, None)
        lane.emit(committed_tokens(table))
        return lane.text


def committed_tokens(table: pa.Table) -> list[int]:
    """The output tokens of a request, from its decided rows."""
    tokens: list[int] = []
    for row in table.select(["node_token", "accepted_nodes", "bonus_token", "emitted"]).to_pylist():
        if row["emitted"] is not None:
            path = [row["node_token"][node] for node in row["accepted_nodes"]]
            tokens += [*path, row["bonus_token"]][: row["emitted"]]
    return tokens
