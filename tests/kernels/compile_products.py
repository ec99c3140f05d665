"""Compile every configuration of the small products for sm_90; print what each uses, as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels import gate_up, product_triton, qkv_rope, row_product
from dflash.kernels.product_plan import HEAD_TILES, MANY, TILES, ProductTile
from dflash.kernels.row_norm import CarriedNorm
from tests.kernels.ahead_of_time import Recorder, print_compiled

KERNELS = ("qkv_kernel", "gate_up_kernel", "row_kernel")


def launched(call: Callable[[], object]) -> list[object]:
    """What a call would launch, compiled."""
    built: list[object] = []
    kernels = {name: getattr(product_triton, name) for name in KERNELS}
    try:
        for name, kernel in kernels.items():
            setattr(product_triton, name, Recorder(kernel, built))
        call()
    finally:
        for name, kernel in kernels.items():
            setattr(product_triton, name, kernel)
    return built


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def compile_qkv(
    rows: int, tile: ProductTile, depth: int, head: int = 64, normed: bool = False, bias: bool = False,
    heads: int = 4, own: bool = False,
) -> list[object]:  # fmt: skip
    """K6 for 2 KV heads, with a norm that was carried or its own; none where a context is appended."""
    x, weight, cache = zeros(rows, depth), zeros((heads + 4) * head, depth), zeros(1, 2, 64, head)
    rotary = qkv_rope.Rotary(*torch.zeros(2, 8, head // 2))
    norms = qkv_rope.HeadNorms(zeros(head), zeros(head), 1e-6) if normed else None
    at = torch.zeros(rows, 2, dtype=torch.int32)
    plan = qkv_rope.qkv_plan(rows, heads + 4, head, depth, "fast", tile, whole_heads=normed)
    arguments = (
        x,
        weight,
        (zeros(depth) if own else carried(rows, depth)) if heads else None,
        rotary,
        at[:, 0].contiguous(),
        at,
        cache,
        cache,
        1e-6,
    )
    biases = zeros((heads + 4) * head) if bias else None
    out = zeros(rows, heads * head)
    return launched(lambda: qkv_rope._launch(*arguments, biases, norms, heads, out, plan, None, True))


def carried(rows: int, width: int) -> CarriedNorm:
    return CarriedNorm(zeros(width), zeros(rows, width), zeros(64, rows, dtype=torch.float32))


def compile_gate_up(rows: int, tile: ProductTile, depth: int, own: bool = False) -> list[object]:
    """With a norm that was carried, or its own."""
    x, weight, out = zeros(rows, depth), zeros(256, depth), zeros(rows, 128)
    norm = zeros(depth) if own else carried(rows, depth)
    plan = gate_up.gate_up_plan(rows, 128, depth, "fast", tile)
    return launched(lambda: gate_up._launch(x, weight, norm, out, 1e-6, plan, None, True))


def compile_rows(rows: int, tile: ProductTile, depth: int, normed: bool = False) -> list[object]:
    """O and down projection, or the head."""
    x, weight, out = zeros(rows, depth), zeros(128, depth), zeros(rows, 128)
    plan = row_product.row_plan(rows, 128, depth, "fast", tile)
    parts = (None, None, out, out, carried(rows, 128))
    if normed:
        parts = (carried(rows, depth), zeros(128), None, out, None)
    return launched(lambda: row_product._launch(x, weight, *parts, 1e-6, plan, None, True))


def configurations() -> dict[str, list[object]]:
    """Everything that production launches, by name; tiles that are launched alike once."""
    make = {"qkv": compile_qkv, "gate-up": compile_gate_up, "rows": compile_rows}
    found: dict[str, list[object]] = {}
    many = {(product, rows, size): tile for (rows, product, size), tile in MANY.items()}
    for (product, rows, size), tile in (TILES | many).items():
        depth = {"small": 576, "deep": 1536, "medium": 2048}.get(size, 4096)
        found[f"{product} {rows} {size}"] = make[product](rows, tile, depth)
        # steps of many rows carry all their norms
        if product != "rows" and (rows, product, size) not in MANY:
            found[f"{product} {rows} {size} own norm"] = make[product](rows, tile, depth, own=True)
    for rows in (16, 64):
        found[f"qkv {rows} Qwen3"] = compile_qkv(rows, HEAD_TILES[rows], 4096, 128, normed=True)
        found[f"rows {rows} head"] = compile_rows(rows, TILES["rows", rows, "large"], 4096, normed=True)
    for rows in (32, 64):
        found[f"qkv {rows} small Qwen3"] = compile_qkv(rows, HEAD_TILES[rows], 512, 128, normed=True)
    found["qkv 16 bias d96"] = compile_qkv(16, TILES["qkv", 16, "large"], 576, 96, bias=True)
    context = TILES["qkv", 16, "small"]
    found["qkv 16 append only"] = compile_qkv(16, context, 576, normed=True, heads=0)
    swapped = TILES["rows", 16, "large"]._replace(half=64, swap=True)
    found["rows 16 swapped"] = compile_rows(16, swapped, 4096)
    by_rows = ProductTile(64, 64, 4, 4, 264, True, 512, True, bulk=True)
    for rows in (32, 64):
        found[f"rows {rows} asked for by the row"] = compile_rows(rows, by_rows, 4096)
    found["qkv 64 asked for by the row"] = compile_qkv(64, by_rows, 4096, 128, normed=True)
    return found


if __name__ == "__main__":
    print_compiled(configurations)
