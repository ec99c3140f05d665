"""The row of a prompt from its record: what the target says behind its last token, and nothing of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dflash.draftfile.rows import Ragged
from dflash.engine.device.arrays import ENDED, STARTED, Records
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.engine.recorder.columns import ColumnMaker


class PromptRows:
    """Makes rows of prompts one by one, with few operations on arrays.

    Args:
        like: any records of such prompts.
        store_topk: logits to keep.
    """

    def __init__(self, like: Records, store_topk: int) -> None:
        self.store_topk = store_topk
        of_rows = {name: values[0, :1] for name, values in like.items() if name != "times"}
        columns = ColumnMaker([], 0, 1, store_topk).columns(of_rows, Laws.of([LaneLaw(0.0, None)]))
        # a tree without nodes has the same columns always
        self._same = {
            name: column.values if isinstance(column, Ragged) else np.asarray(column)[0].copy()
            for name, column in columns.items()
        }

    def row(self, records: Records, place: int, lane: Lane) -> Row:
        """The columns of a prompt's last token but for what is emitted; the arrays are the caller's.

        Args:
            records: of a forward.
            place: of the prompt in it.
            lane: that it fills.
        """
        tokens, top = lane.request.prompt_tokens, self.store_topk

        def of(name: str) -> Any:
            return records[name][0, place].copy()

        ids, gap, (times,) = of("slot_ids")[0], of("gap"), records["times"]
        started, ended = int(times[STARTED]), int(times[ENDED])
        spent = (ended - started) / 1e3 if started else np.nan
        row = self._same | {
            "slot_argmax": ids[:1],
            "slot_choice": of("choice"),
            "slot_choice_logit": of("choice_logit"),
            "slot_gap": gap if np.isfinite(gap[0]) else np.full_like(gap, np.nan),
            "slot_lse": of("lse"),
            "slot_lse_p": of("lse_p"),
            "slot_entropy": of("entropy"),
            "slot_topk_token": ids[:top],
            "slot_topk_logit": of("slot_logits")[0, :top],
            "anchor_position": len(tokens) - 1,
            "anchor_token": tokens[-1],
            "verify_us": spent,
            "round_us": spent,
        }
        if "fingerprint" in records:
            row["feature_fingerprint"] = of("fingerprint").reshape(-1)
        return row
