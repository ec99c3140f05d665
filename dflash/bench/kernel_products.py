"""The small products of a layer on model shapes: our kernels, torch operations, compiled, and int8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash.bench.kernel_inputs import MAX_RELATIVE_ERROR, relative_error
from dflash.bench.kernel_timing import Timing, rotations, time_graph
from dflash.kernels.attention_plan import Mode
from dflash.kernels.gate_up import gate_up, gate_up_plan
from dflash.kernels.product_plan import ProductPlan, ProductTile
from dflash.kernels.product_scratch import ProductScratch, product_scratch
from dflash.kernels.qkv_rope import HeadNorms, Rotary, qkv_plan, qkv_rope
from dflash.kernels.row_norm import CarriedNorm, carried_norm, leave_norm
from dflash.kernels.row_product import row_plan, row_product

Calls = list[Callable[[], Tensor]]
INT8_ERROR = 2e-2
POSITIONS = 4096
LEAST_TILE = 16


class ProductShape(NamedTuple):
    """One product in bfloat16; `columns` are those of the weight's rows that a call multiplies with."""

    kernel: str
    rows: int
    depth: int
    columns: int
    head: int
    """Numbers a head; 0 but for `qkv`."""
    target_us: float
    head_norms: bool = False
    carried: bool = False
    """As in a step: Q/K/V and gate/up read a norm that was carried, rows carry the next one."""

    @property
    def name(self) -> str:
        """How the shape is printed."""
        norms = " head norms" * self.head_norms + " carried" * self.carried
        return f"n{self.rows} {self.depth} to {self.columns}{norms}"

    @property
    def bytes(self) -> int:
        """Fewest bytes that one call must move: of the weight, to begin with."""
        out = self.columns // 2 if self.kernel == "gate-up" else self.columns
        residual = self.columns if self.kernel == "rows" else 0
        return 2 * (self.columns * self.depth + self.rows * (self.depth + out + residual))

    @property
    def kv_heads(self) -> int:
        """K heads of `qkv`, and as many V heads: a sixth of all heads, or a fifth."""
        heads = self.columns // self.head
        return heads // (5 if heads % 6 else 6)


# targets of reference tables, 0 where there is none
PRODUCT_SHAPES = [
    ProductShape("qkv", 1, 576, 960, 64, 3),
    ProductShape("qkv", 4, 2048, 3072, 64, 5),
    ProductShape("qkv", 16, 2048, 3072, 64, 5),
    ProductShape("qkv", 17, 1024, 4096, 128, 4.5, True),
    ProductShape("qkv", 32, 4096, 6144, 128, 16),
    ProductShape("qkv", 64, 4096, 6144, 128, 16, True),
    ProductShape("gate-up", 16, 2048, 16384, 0, 19),
    ProductShape("rows", 16, 8192, 2048, 0, 10.5),
    ProductShape("gate-up", 17, 576, 3072, 0, 0),
    ProductShape("rows", 17, 576, 576, 0, 0),
    ProductShape("rows", 17, 1536, 576, 0, 0),
]
# the products of the steps that `dflash bench step` compares: what to sweep for
STEP_SHAPES = [
    ProductShape(kernel, rows, depth, columns, head, 0, False, True)
    for rows, hidden, queries, inner, head in [
        (8, 576, 960, 1536, 64),
        (17, 576, 960, 1536, 64),
        (17, 2048, 3072, 8192, 64),
        (17, 4096, 6144, 14336, 128),
        (64, 576, 960, 1536, 64),
    ]
    for kernel, depth, columns, head in [
        ("qkv", hidden, queries, head),
        ("rows", hidden, hidden, 0),
        ("gate-up", hidden, 2 * inner, 0),
        ("rows", inner, hidden, 0),
    ]
] + [
    ProductShape("rows", 17, 576, 49152, 0, 0),
    ProductShape("rows", 17, 2048, 128256, 0, 0),
]


class ProductInputs(NamedTuple):
    """One buffer set."""

    x: Tensor
    weight: Tensor
    norm: Tensor
    residual: Tensor
    cache: tuple[Tensor, Tensor] | None
    carried: CarriedNorm | None = None


class Shared(NamedTuple):
    """What all buffer sets of a `qkv` shape share."""

    rotary: Rotary
    positions: Tensor
    places: Tensor
    norms: HeadNorms | None


def make_products(shape: ProductShape, count: int) -> list[ProductInputs]:
    """Draw `count` buffer sets."""

    def normal(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    sets = []
    for _ in range(count):
        cache = None
        if shape.head:
            cache = tuple(normal(1, shape.kv_heads, 256, shape.head) for _ in range(2))
        weight = normal(shape.columns, shape.depth) * shape.depth**-0.5
        residual = normal(shape.rows, shape.columns)
        x, norm = normal(shape.rows, shape.depth), normal(shape.depth)
        carried = _carried(shape, x, norm) if shape.carried else None
        sets.append(ProductInputs(x, weight, norm, residual, cache, carried))
    return sets


def _carried(shape: ProductShape, x: Tensor, norm: Tensor) -> CarriedNorm:
    """The norm that a preceding launch left, or room for the one that this launch leaves."""
    if shape.kernel == "rows":
        room = carried_norm(x.new_ones(shape.columns), shape.rows, shape.depth)
        return room._replace(squares=room.squares.new_empty(shape.columns // LEAST_TILE, shape.rows))
    carried = carried_norm(norm, shape.rows, shape.depth)
    leave_norm(carried, x)
    return carried


def make_shared(shape: ProductShape) -> Shared | None:
    """Positions from the middle of a table on, in rows of a cache."""
    if not shape.head:
        return None
    angles = torch.rand(POSITIONS, shape.head // 2, device="cuda") * 6
    row = torch.arange(shape.rows, dtype=torch.int32, device="cuda")
    places = torch.stack([torch.zeros_like(row), row + 64], 1).contiguous()
    gains = torch.rand(2, shape.head, device="cuda").bfloat16() + 0.5
    norms = HeadNorms(*gains, 1e-6) if shape.head_norms else None
    return Shared(Rotary(angles.cos(), angles.sin()), row + POSITIONS // 2, places, norms)


def plan_of(shape: ProductShape, mode: Mode, tile: ProductTile | None = None) -> ProductPlan:
    """The launch of a shape."""
    size = (shape.rows, shape.columns, shape.depth, mode, tile)
    if shape.kernel == "rows":
        return row_plan(*size)
    if shape.kernel == "gate-up":
        return gate_up_plan(shape.rows, shape.columns // 2, *size[2:])
    heads = shape.columns // shape.head
    return qkv_plan(shape.rows, heads, shape.head, *size[2:], whole_heads=shape.head_norms)


def scratch_of(shape: ProductShape, mode: Mode, tile: ProductTile | None = None) -> ProductScratch:
    """Scratch that all calls of a shape share, as those of a step do: none fills it anew."""
    return product_scratch([plan_of(shape, mode, tile)], torch.device("cuda"))


def run_product(
    shape: ProductShape,
    inputs: ProductInputs,
    shared: Shared | None,
    *,
    mode: Mode = "fast",
    impl: Any = "triton",
    tile: ProductTile | None = None,
    out: Tensor | None = None,
    scratch: Any = None,
) -> Tensor:
    """Our kernel on one buffer set."""
    given = {"mode": mode, "impl": impl, "tile": tile, "out": out, "scratch": scratch}
    x, weight, norm, residual, cache, carried = inputs
    if shape.kernel == "rows":
        if carried is not None:
            parts = plan_of(shape, mode, tile).column_tiles
            carried = carried._replace(squares=carried.squares[:parts])
        return row_product(x, weight, residual=residual, carry=carried, **given)
    norm = norm if carried is None else carried
    if shape.kernel == "gate-up":
        return gate_up(x, weight, norm, **given)
    return qkv_rope(
        x, weight, norm, shared.rotary, shared.positions, shared.places, *cache, head_norms=shared.norms,
        **given,
    )  # fmt: skip


def expected_product(shape: ProductShape, inputs: ProductInputs, shared: Shared | None) -> Tensor:
    """The float64 answer; keys and values are checked by the tests."""
    wide = ProductInputs(
        *(t.double() for t in inputs[:4]),
        None if inputs.cache is None else tuple(t.double() for t in inputs.cache),
    )
    if shared is not None and shared.norms is not None:
        gains = shared.norms
        shared = shared._replace(norms=HeadNorms(gains.q.double(), gains.k.double(), gains.eps))
    return run_product(shape, wide, shared, impl="reference")


def torch_product(shape: ProductShape, inputs: ProductInputs, shared: Shared | None) -> Tensor:
    """The same in torch operations: cuBLAS, and what goes around it."""
    x, weight, norm, residual, cache = inputs[:5]
    if shape.kernel == "rows":
        return torch.addmm(residual, x, weight.T)
    product = F.linear(F.rms_norm(x, norm.shape, norm, 1e-6), weight)
    if shape.kernel == "gate-up":
        gate, up = product.chunk(2, dim=-1)
        return F.silu(gate) * up
    heads = product.unflatten(-1, (-1, shape.head))
    queries, keys, values = heads.split([heads.shape[1] - 2 * shape.kv_heads, *[shape.kv_heads] * 2], dim=1)
    if shared.norms is not None:
        queries = F.rms_norm(queries, (shape.head,), shared.norms.q, 1e-6)
        keys = F.rms_norm(keys, (shape.head,), shared.norms.k, 1e-6)
    cos, sin = (table[shared.positions][:, None].to(x.dtype) for table in shared.rotary)
    rows = shared.places[:, 1].long()
    cache[0][0, :, rows] = _turned(keys, cos, sin).transpose(0, 1)
    cache[1][0, :, rows] = values.transpose(0, 1)
    return _turned(queries, cos, sin).flatten(1)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = heads.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def _compiled(shape: ProductShape, sets: Sequence[ProductInputs], shared: Shared | None) -> Calls:
    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: torch_product(shape, inputs, shared), dynamic=False)
    return [lambda s=s: compiled(s) for s in sets]


def _int8(shape: ProductShape, sets: Sequence[ProductInputs], shared: Shared | None) -> Calls:
    """torchao's int8 weights: half the bytes, and other numbers."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    if shape.kernel != "rows":
        raise ValueError("only plain products are measured with int8 weights")
    linears = []
    for s in sets:
        linear = nn.Linear(shape.depth, shape.columns, bias=False, device="cuda", dtype=torch.bfloat16)
        linear.weight.data = s.weight
        model = nn.Sequential(linear)
        quantize_(model, Int8WeightOnlyConfig())
        linears.append(model)
    torch._dynamo.reset()
    compiled = torch.compile(lambda model, x, residual: model(x) + residual, dynamic=False)
    return [lambda m=m, s=s: compiled(m, s.x, s.residual) for m, s in zip(linears, sets, strict=True)]


class Timed(NamedTuple):
    """One way to compute a shape, and how long it took."""

    name: str
    timing: Timing | None
    same_numbers: bool
    error: float | None
    failure: str | None


@torch.inference_mode()
def measure_product(shape: ProductShape, compiled: bool) -> list[Timed]:
    """Time our kernel in both modes and every peer; the first row is `fast`. The caller judges our errors."""
    sets, shared = make_products(shape, rotations(shape.bytes)), make_shared(shape)
    expected = expected_product(shape, sets[0], shared)
    found = []
    modes: tuple[Mode, Mode] = ("fast", "replay-exact")
    for mode in modes:
        out = torch.full_like(expected, torch.nan, dtype=torch.bfloat16)
        given = {"mode": mode, "out": out, "scratch": scratch_of(shape, mode)}
        calls = [lambda s=s, g=given: run_product(shape, s, shared, **g) for s in sets]
        error = relative_error(calls[0](), expected)
        found.append(Timed(f"dflash {mode}", time_graph(calls), True, error, None))
    peers: dict[str, Callable[[], Calls]] = {
        "torch operations": lambda: [lambda s=s: torch_product(shape, s, shared) for s in sets]
    }
    if compiled:
        peers["torch.compile"] = lambda: _compiled(shape, sets, shared)
        peers["torchao int8"] = lambda: _int8(shape, sets, shared)
    return found + [_peer(name, build, expected) for name, build in peers.items()]


def _peer(name: str, build: Callable[[], Calls], expected: Tensor) -> Timed:
    """Time a peer; one that cannot run the shape, or is wrong, says so."""
    same = name != "torchao int8"
    try:
        calls = build()
        error = relative_error(calls[0](), expected)
        if error > (MAX_RELATIVE_ERROR if same else INT8_ERROR):
            return Timed(name, None, same, error, "wrong output")
        return Timed(name, time_graph(calls), same, error, None)
    except Exception as failure:
        return Timed(name, None, same, None, f"{type(failure).__name__}: {failure}"[:300])
