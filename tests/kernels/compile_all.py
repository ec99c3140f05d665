"""Compile every production configuration for sm_90 and print what each uses, as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels import accept_triton, attention_launch, philox_triton
from dflash.kernels.attention_checks import Sizes
from dflash.kernels.attention_plan import TILES, Tile
from dflash.kernels.attention_scratch import make_plan, make_scratch
from tests.kernels.ahead_of_time import Recorder, print_compiled

BATCH = {"short": 1, "long": 1, "wave": 8, "full": 32, "exact": 1, "exact full": 32}


def compile_attention(
    tile: Tile,
    batch: int,
    nodes: int,
    group: int,
    head: int,
    page: int,
    dtype: torch.dtype,
    mode: str,
    tree: bool,
) -> list[object]:
    """Launch into compilation; sizes of the cache play no part."""
    built: list[object] = []
    kernels = attention_launch.attend_chunks, attention_launch.merge_chunks
    attention_launch.attend_chunks, attention_launch.merge_chunks = (Recorder(k, built) for k in kernels)
    try:
        q = torch.zeros((batch, nodes, 2 * group, head), dtype=dtype)
        k = torch.zeros((batch, 2, max(page, 64), head), dtype=dtype)
        sizes = Sizes(batch, nodes, 2 * group, head, 2, group, min(nodes, 64), page, 4096)
        chosen = make_plan(sizes, mode, tile)
        words = torch.zeros((batch, nodes), dtype=torch.int64) if tree else None
        table = torch.zeros((batch, 16), dtype=torch.int32) if page else None
        lengths = torch.zeros(batch, dtype=torch.int32)
        scratch = make_scratch(q, sizes, chosen)
        attention_launch.launch(q, k, k, lengths, words, table, q.clone(), sizes, 0.1, chosen, scratch, True)
    finally:
        attention_launch.attend_chunks, attention_launch.merge_chunks = kernels
    return built


def compile_accept(nodes: int, speculative: bool, ties: bool) -> list[object]:
    """The acceptance kernel at a size."""
    built: list[object] = []
    ids, words = torch.zeros(64, dtype=torch.int32), torch.zeros(65, dtype=torch.int64)
    floats = torch.zeros(64)
    Recorder(accept_triton.accept_lane, built)[(1,)](
        ids, ids, words, ids, floats, floats, floats, ids, ids, ids, ids, ids, ids, ids, ids, nodes,
        NODES=nodes, SPECULATIVE=speculative, PATHS=speculative, TIES=ties, num_warps=1 if nodes <= 32 else 2,
    )  # fmt: skip
    return built


def configurations() -> dict[str, list[object]]:
    """Everything that production launches, by name; each tile once a head size."""
    found: dict[str, list[object]] = {}
    seen = set()
    for (head, rows, regime), tile in TILES.items():
        if (head, tile, regime[:5] == "exact") not in seen:
            seen.add((head, tile, regime[:5] == "exact"))
            mode = "replay-exact" if "exact" in regime else "fast"
            call = (BATCH[regime], rows // 4, 4, head, 0, torch.bfloat16, mode, True)
            found[f"d{head} rows{rows} {regime}"] = compile_attention(tile, *call)
    wide = TILES[128, 64, "long"]
    found["block"] = compile_attention(wide, 1, 16, 4, 128, 0, torch.bfloat16, "fast", False)
    found["fp16 group3 d96"] = compile_attention(wide, 1, 16, 3, 96, 0, torch.float16, "fast", True)
    found["page16"] = compile_attention(wide, 8, 16, 4, 128, 16, torch.bfloat16, "fast", True)
    found["page64"] = compile_attention(wide, 8, 16, 4, 128, 64, torch.bfloat16, "fast", True)
    for nodes in (32, 64):
        found[f"accept{nodes}"] = compile_accept(nodes, False, nodes == 32)
        found[f"accept{nodes} speculative"] = compile_accept(nodes, True, False)
    built: list[object] = []
    bits = torch.zeros(64, dtype=torch.int32)
    Recorder(philox_triton.philox_kernel, built)[(1,)](bits, bits, bits, 9, BLOCK=128)
    found["philox"] = built
    return found


if __name__ == "__main__":
    print_compiled(configurations)
