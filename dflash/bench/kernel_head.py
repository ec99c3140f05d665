"""The output head with its statistics: our kernel, cuBLAS with torch's top-k and log-sum-exp, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash.bench.kernel_inputs import MAX_RELATIVE_ERROR, relative_error
from dflash.bench.kernel_products import Timed
from dflash.bench.kernel_timing import rotations, time_graph
from dflash.kernels.attention_plan import Mode
from dflash.kernels.lm_head_call import Draw, HeadScores, empty_scores
from dflash.kernels.lm_head_plan import HeadTile
from dflash.kernels.lm_head_topk import head_scratch, lm_head_topk

TEMPERATURE = 0.8
Calls = list[Callable[[], Tensor]]


class HeadShape(NamedTuple):
    """One head in bfloat16; with `drawn`, each row's choice too."""

    vocabulary: int
    width: int
    rows: int
    target_us: float
    top: int = 8
    drawn: bool = False
    kernel: str = "head"

    @property
    def name(self) -> str:
        """How the shape is printed."""
        return f"n{self.rows} {self.width} to {self.vocabulary} top {self.top}{' drawn' * self.drawn}"

    @property
    def bytes(self) -> int:
        """Fewest bytes that one call must move: the head, to begin with."""
        return 2 * self.width * (self.vocabulary + self.rows) + self.rows * (8 * self.top + 4)


HEAD_SHAPES = [
    HeadShape(49152, 576, 16, 20),
    HeadShape(49152, 2048, 16, 56),
    HeadShape(128256, 2048, 32, 138),
    HeadShape(151936, 1024, 64, 90),
    HeadShape(151936, 4096, 16, 322),
    # one row, as a draft step has; the recorder's own top-k with choices; a reduced draft vocabulary
    HeadShape(49152, 576, 1, 0, 1),
    HeadShape(49152, 576, 17, 0, 16, True),
    HeadShape(128256, 2048, 32, 0, 16, True),
    HeadShape(32768, 2048, 16, 0, 8),
]


class HeadInputs(NamedTuple):
    """One buffer set."""

    hidden: Tensor
    weight: Tensor
    draw: Draw | None


def make_heads(shape: HeadShape, count: int) -> list[HeadInputs]:
    """Draw `count` buffer sets; logits spread as a model's do."""
    draw = None
    if shape.drawn:
        ids = torch.randint(-(2**31), 2**31 - 1, (shape.rows, 3), dtype=torch.int32, device="cuda")
        temperatures = torch.full((shape.rows,), TEMPERATURE, device="cuda")
        draw = Draw(temperatures, ids[:, :2].contiguous(), ids[:, 2].contiguous())

    def normal(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    return [
        HeadInputs(
            normal(shape.rows, shape.width),
            normal(shape.vocabulary, shape.width) * shape.width**-0.5 * 3,
            draw,
        )
        for _ in range(count)
    ]


def expected_head(shape: HeadShape, inputs: HeadInputs) -> Tensor:
    """Largest logits and log-sum-exp in float64, `[rows, top + 1]`."""
    wide = inputs.hidden.double()
    pieces = inputs.weight.split(16384)
    logits = torch.cat([wide @ piece.double().T for piece in pieces], -1)
    return torch.cat([logits.topk(shape.top).values, logits.logsumexp(-1, keepdim=True)], -1)


def numbers_of(scores: HeadScores) -> Tensor:
    """What is compared with `expected_head`."""
    return torch.cat([scores.values, scores.lse[:, None]], -1)


def our_heads(
    shape: HeadShape, sets: Sequence[HeadInputs], mode: Mode = "fast", tile: HeadTile | None = None
) -> list[Callable[[], HeadScores]]:
    """Our kernel on every buffer set."""
    first = sets[0]
    out = empty_scores(first.hidden, shape.top, None, first.draw)
    for tensor in (out.values, out.lse):
        tensor.fill_(torch.nan)
    scratch = head_scratch(*first[:2], shape.top, mode=mode, tile=tile)
    given = {"mode": mode, "tile": tile, "out": out, "scratch": scratch}
    return [lambda s=s: lm_head_topk(*s[:2], shape.top, draw=s.draw, **given) for s in sets]


def torch_head(shape: HeadShape, inputs: HeadInputs) -> Tensor:
    """The same in torch operations; their noise is not keyed."""
    logits = F.linear(*inputs[:2])
    best = logits.topk(shape.top)
    lse = logits.float().logsumexp(-1, keepdim=True)
    if not shape.drawn:
        return torch.cat([best.values.float(), lse], -1)
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log()
    choice = (logits.float() / TEMPERATURE - noise).argmax(-1, keepdim=True)
    return torch.cat([best.values.float(), lse, choice.float()], -1)


def compiled_heads(shape: HeadShape, sets: Sequence[HeadInputs]) -> Calls:
    """The torch operations under torch.compile."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda inputs: torch_head(shape, inputs), dynamic=False)
    return [lambda s=s: compiled(s) for s in sets]


@torch.inference_mode()
def measure_head(shape: HeadShape, compiled: bool) -> list[Timed]:
    """Time our kernel in both modes, cold, `fast` with a warm L2, and every peer; `fast` comes first."""
    sets = make_heads(shape, rotations(shape.bytes))
    expected = expected_head(shape, sets[0])
    found = []
    modes: tuple[Mode, Mode] = ("fast", "replay-exact")
    for mode in modes:
        calls = our_heads(shape, sets, mode)
        error = relative_error(numbers_of(calls[0]()), expected)
        found.append(Timed(f"dflash {mode}", time_graph(calls), True, error, None))
        if mode == "fast":
            found.append(Timed("dflash warm L2", time_graph(calls[:1]), True, error, None))
    peers: dict[str, Callable[[], Calls]] = {
        "torch operations": lambda: [lambda s=s: torch_head(shape, s) for s in sets]
    }
    if compiled:
        peers["torch.compile"] = lambda: compiled_heads(shape, sets)
    return found + [_peer(name, build, expected) for name, build in peers.items()]


def _peer(name: str, build: Callable[[], Calls], expected: Tensor) -> Timed:
    """Time a peer; one that cannot run the shape, or is wrong, says so."""
    try:
        calls = build()
        error = relative_error(calls[0]()[:, : expected.shape[1]], expected)
        if error > MAX_RELATIVE_ERROR:
            return Timed(name, None, True, error, "wrong output")
        return Timed(name, time_graph(calls), True, error, None)
    except Exception as failure:
        return Timed(name, None, True, None, f"{type(failure).__name__}: {failure}"[:300])
