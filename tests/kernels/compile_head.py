"""Compile the head and the packing of features for sm_90; print what each uses, as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels import lm_head_launch, pack_features, pack_triton
from dflash.kernels.feature_codes import CODES
from dflash.kernels.lm_head_call import Draw, empty_scores
from dflash.kernels.lm_head_plan import head_plan
from dflash.kernels.lm_head_scratch import make_head_scratch
from tests.kernels.ahead_of_time import Recorder, print_compiled

VOCABULARY = 128256


def compile_head(
    rows: int, top: int, dtype: torch.dtype = torch.bfloat16, drawn: bool = False, all_else: bool = False,
    vocabulary: int = VOCABULARY,
) -> list[object]:  # fmt: skip
    """Both kernels at a size; `all_else` maps ids, asks for logits, and draws with purposes and paths."""
    built: list[object] = []
    kernels = lm_head_launch.score_chunks, lm_head_launch.merge_parts
    lm_head_launch.score_chunks, lm_head_launch.merge_parts = (Recorder(k, built) for k in kernels)
    try:
        hidden, weight = torch.zeros((rows, 2048), dtype=dtype), torch.zeros((4096, 2048), dtype=dtype)
        ids = torch.zeros(4096, dtype=torch.int32)
        words = torch.zeros(rows, dtype=torch.int32)
        more = (words, words) if all_else else (None, None)
        keys = torch.zeros((rows, 2), dtype=torch.int32)
        draw = Draw(torch.zeros(rows), keys, words, *more) if drawn else None
        asked = torch.zeros((rows, 4), dtype=torch.int32) if all_else else None
        plan = head_plan(rows, vocabulary, weight.element_size(), top, "fast", None)
        lm_head_launch.launch_head(
            hidden, weight, ids if all_else else None, asked, draw, 1.0, None, 1e-5, plan,
            make_head_scratch(hidden, plan), empty_scores(hidden, top, asked, draw), True,
        )  # fmt: skip
    finally:
        lm_head_launch.score_chunks, lm_head_launch.merge_parts = kernels
    return built


def compile_pack(encoding: str, dtype: torch.dtype) -> list[object]:
    """The packing kernel, three taps of a hidden size of 4,096."""
    built: list[object] = []
    kernel = pack_triton.pack_rows
    pack_triton.pack_rows = Recorder(kernel, built)
    try:
        ring = pack_features.feature_ring(64, 12288, encoding, "cpu")
        taps, count = torch.zeros((2, 16, 12288), dtype=dtype), torch.zeros(2, dtype=torch.int32)
        path = torch.zeros((2, 15), dtype=torch.int32)
        span = torch.zeros(2, dtype=torch.int64)
        pack_features._launch(taps, count, path, ring, encoding, pack_features.PACK_TILE, True, count, span)
    finally:
        pack_triton.pack_rows = kernel
    return built


def configurations() -> dict[str, list[object]]:
    """The widest and the commonest uses of every tile."""
    found = {
        "head 16 top 1": compile_head(16, 1),
        "head 32 top 8": compile_head(32, 8),
        "head 64 top 16": compile_head(64, 16),
        "head 16 drawn, all else, top 16": compile_head(16, 16, drawn=True, all_else=True),
        "head 32 drawn, all else, top 32": compile_head(32, 32, drawn=True, all_else=True),
        "head 64 drawn, all else, top 32": compile_head(64, 32, drawn=True, all_else=True),
        "head 32 drawn, top 32": compile_head(32, 32, drawn=True),
        "head 64 drawn, top 16": compile_head(64, 16, drawn=True),
        "head 32 drawn, top 16": compile_head(17, 16, drawn=True),
        "head 32 drawn, top 16, small": compile_head(17, 16, drawn=True, vocabulary=49152),
        "head 32 float32 drawn": compile_head(32, 4, torch.float32, drawn=True),
        "head 64 float32 drawn, all else, top 32": compile_head(64, 32, torch.float32, True, True),
    }
    for encoding in CODES:
        found[f"pack {encoding}"] = compile_pack(encoding, torch.bfloat16)
    found["pack int8 of float16"] = compile_pack("int8", torch.float16)
    return found


if __name__ == "__main__":
    print_compiled(configurations)
