"""Time one verify step and one draft block, natively and by what else there is, on this GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dflash.bench.kernel_ceilings import measure_ceilings
from dflash.bench.kernel_inputs import relative_error
from dflash.bench.kernels import NoDevice, RedCheck, environment
from dflash.bench.step_shapes import MODELS, SHAPES, StepShape, make_target
from dflash.bench.step_ways import (
    DRAFT_WAYS,
    VERIFY_WAYS,
    DraftCase,
    Prepared,
    StepWay,
    VerifyCase,
    draft_case,
    exact_draft,
    exact_verify,
    native_draft,
    native_verify,
    verify_case,
)
from dflash.policy.step_time import Grid, StepTime

# how much farther from float32 than torch in the same dtype a way may be: ours, and any other
OURS, PEERS, SLACK = 1.5, 2.0, 1e-3
FLUSH_BYTES = 256 << 20
REPEATS = 40
NODES, BATCHES, CONTEXTS = (0, 7, 15, 31), (1, 8, 64), (512, 4096)
ASSUMPTIONS = (
    "a step is the forward alone: acceptance and the host's work are not in it",
    "a block costs the same whatever part of it is drafted, and nothing at length 0",
)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One way to compute one shape."""

    shape: str
    name: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    floor_us: float
    goal_us: float
    ambition_us: float | None
    error: float | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and the profile of the native way on one model."""

    read_tbs: float
    rows: list[StepRow]
    profile_of: str
    step_time: StepTime


def time_step(ready: Prepared, repeats: int = REPEATS) -> tuple[float, float, float]:
    """Median, 10 % and 90 % quantiles in microseconds, L2 flushed before each call."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    samples = []
    for index in range(repeats + 3):
        ready.before()
        flush.fill_(index % 2)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        ready.call()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000)
    samples = sorted(samples[3:])
    return statistics.median(samples), samples[repeats // 10], samples[-1 - repeats // 10]


def bytes_of(modules: Sequence[torch.nn.Module], cache: Sequence[Any]) -> int:
    """Fewest bytes that a step must read: every weight of its modules once, keys and values once."""
    weights = {id(value): value.nbytes for module in modules for value in module.parameters()}
    return sum(weights.values()) + sum(store.nbytes for pair in cache for store in pair)


def _row(shape: StepShape, floor: float, name: str, **found: Any) -> StepRow:
    times = found.pop("times", (None, None, None))
    goal = shape.goal_us or 1.35 * floor
    return StepRow(shape.name, name, *times, floor, goal, shape.ambition_us, **found)


class Judge(NamedTuple):
    """Logits in float32, and by torch in the case's own dtype, whose distance from them is rounding."""

    exact: Tensor
    rounded: Tensor

    def error(self, way: StepWay, logits: Tensor) -> tuple[float, float]:
        """A way's distance from float32, and the largest that it may have."""
        exact = way.part(self.exact)
        factor = OURS if _is_ours(way) else PEERS
        return relative_error(logits, exact), factor * relative_error(way.part(self.rounded), exact) + SLACK


def _is_ours(way: StepWay) -> bool:
    return way.name.startswith("dflash")


def judge(case: VerifyCase | DraftCase, ways: Sequence[StepWay]) -> Judge:
    """What the ways of a case are held against; the float32 copy of its model is freed."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        exact = exact_verify(case) if isinstance(case, VerifyCase) else exact_draft(case)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.cuda.empty_cache()
    return Judge(exact, next(way for way in ways if "eager" in way.name).build(case).call().clone())


def _measure(
    shape: StepShape, case: Any, ways: Sequence[StepWay], floor: float, say: Callable[[str], None]
) -> list[StepRow]:
    """Time every way; ours must be as near to float32 as torch is, a peer that fails or is not says so."""
    say(f"{shape.name}: float32")
    judged = judge(case, ways)
    rows = []
    for way in ways:
        say(f"{shape.name}: {way.name}")
        try:
            ready = way.build(case)
            ready.before()
            error, bound = judged.error(way, ready.call())
            times = time_step(ready) if error <= bound else (None, None, None)
        except Exception as failure:
            if _is_ours(way):
                raise
            rows.append(_row(shape, floor, way.name, failure=f"{type(failure).__name__}: {failure}"[:300]))
            continue
        if error > bound and _is_ours(way):
            raise RedCheck(
                f"{shape.name}: {way.name}: expected at most {bound:.2e} from float32, found {error:.2e}."
            )
        wrong = None if error <= bound else "wrong output"
        rows.append(_row(shape, floor, way.name, times=times, error=error, failure=wrong))
    return rows


@torch.inference_mode()
def measure_shape(
    shape: StepShape, target: Any, read_tbs: float, compiled: bool, say: Callable[[str], None]
) -> list[StepRow]:
    """Time one shape by every way."""
    head = target.get_output_embeddings()
    if shape.kind == "verify":
        case: Any = verify_case(target, shape.nodes, shape.context)
        ways, size = VERIFY_WAYS, bytes_of([target.model.layers, target.model.norm, head], case.cache)
    else:
        case = draft_case(target, shape.nodes, shape.context)
        ways, size = DRAFT_WAYS, bytes_of([case.drafter.layers, case.drafter.norm, head], case.cache)
    chosen = [way for way in ways if compiled or "compile" not in way.name]
    return _measure(shape, case, chosen, size / read_tbs / 1e6, say)


@torch.inference_mode()
def profile(target: Any, block: int = 8) -> StepTime:
    """Step times of the native way: what `--cost` reads."""
    verify = [
        time_step(native_verify(verify_case(target, nodes, context, batch)), 10)[0]
        for nodes in NODES
        for batch in BATCHES
        for context in CONTEXTS
    ]
    draft = time_step(native_draft(draft_case(target, block, CONTEXTS[0])), 10)[0]
    lengths = Grid(((0.0, 1.0, float(block - 1)), (1.0,)), (0.0, draft, draft))
    return StepTime(lengths, Grid((_axis(NODES), _axis(BATCHES), _axis(CONTEXTS)), tuple(verify)))


def _axis(points: Sequence[int]) -> tuple[float, ...]:
    return tuple(map(float, points))


def compare(
    models: Sequence[str] = MODELS,
    *,
    compiled: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Measure the shapes of some models; the profile is the first one's.

    Raises:
        NoDevice: without a CUDA device.
        RedCheck: the native step is farther from float32 than bf16 explains; nothing is reported.
    """
    if not torch.cuda.is_available():
        raise NoDevice("dflash bench step --compare")
    read_tbs = measure_ceilings().read_tbs
    rows: list[StepRow] = []
    step_time: StepTime | None = None
    for name in models:
        target = make_target(name, "cuda", torch.bfloat16)
        for shape in SHAPES:
            if shape.model == name:
                rows += measure_shape(shape, target, read_tbs, compiled, say)
        if step_time is None:
            say(f"{name}: profile")
            step_time = profile(target)
        del target
        torch.cuda.empty_cache()
    assert step_time is not None
    return Comparison(read_tbs, rows, models[0], step_time)


def document(found: Comparison) -> dict[str, Any]:
    """The comparison as one JSON document."""
    return {
        "schema": "dflash.bench_step_compare/1",
        "environment": environment(),
        "read_tbs": found.read_tbs,
        "rows": [asdict(row) for row in found.rows],
        "profile": {
            "of": found.profile_of,
            "step_time": found.step_time.to_dict(),
            "assumptions": list(ASSUMPTIONS),
        },
    }
