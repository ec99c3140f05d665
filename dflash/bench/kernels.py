"""Time the kernels against their peers on this card.

Run as `dflash bench kernels`, or `python -m dflash.bench.kernels`.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from dflash.bench import kernel_accept
from dflash.bench.kernel_attention import our_calls
from dflash.bench.kernel_ceilings import Ceilings, measure_ceilings
from dflash.bench.kernel_head import HEAD_SHAPES, HeadShape, measure_head
from dflash.bench.kernel_inputs import (
    MAX_RELATIVE_ERROR,
    Inputs,
    expected_output,
    make_inputs,
    relative_error,
)
from dflash.bench.kernel_pack import PACK_SHAPES, PackShape, measure_pack
from dflash.bench.kernel_peers import ATTENTION_PEERS, Peer, output_of
from dflash.bench.kernel_peers_compiled import COMPILED_PEERS
from dflash.bench.kernel_prewarm import LayerShape, compile_ahead
from dflash.bench.kernel_products import PRODUCT_SHAPES, Timed, measure_product
from dflash.bench.kernel_shapes import ACCEPT_SHAPES, EXTRA, SHAPES, Shape
from dflash.bench.kernel_table import as_text
from dflash.bench.kernel_timing import Timing, rotations, time_graph
from dflash.errors import DflashError
from dflash.kernels.attention_plan import Mode


class RedCheck(DflashError):
    """A kernel is wrong, so its speed is not reported."""

    exit_code = 1


class NoDevice(DflashError):
    """There is no GPU to measure on."""

    def __init__(self, command: str = "dflash bench kernels") -> None:
        super().__init__(f"{command}: expected a CUDA device, found none.")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel at one shape, or a peer at it."""

    kernel: str
    shape: str
    name: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    bytes: int
    target_us: float
    takes_tree_mask: bool
    error: float | None = None
    failure: str | None = None


def _row(
    shape: Shape | LayerShape,
    name: str,
    timing: Timing | None,
    mask: bool,
    error: float | None,
    failure: str | None,
) -> Row:
    times = timing or (None, None, None)
    return Row(shape.kernel, shape.name, name, *times, shape.bytes, shape.target_us, mask, error, failure)


class Prepared(NamedTuple):
    """A shape's buffers and its answer, held while every way to compute it is timed."""

    shape: Shape
    sets: list[Inputs]
    lanes: list[int]
    """The lanes that are compared with the answer."""
    expected: torch.Tensor


def prepare(shape: Shape) -> Prepared:
    """Draw the buffers of a shape and compute its answer in float64."""
    sets = make_inputs(shape, rotations(shape.bytes))
    lanes = sorted({0, shape.batch // 2, shape.batch - 1})
    return Prepared(shape, sets, lanes, expected_output(shape, sets[0], lanes))


def measure_ours(ready: Prepared) -> list[Row]:
    """Time our kernel in both modes, cold, and `fast` with a warm L2.

    Raises:
        RedCheck: the output is wrong.
    """
    shape, rows = ready.shape, []
    modes: tuple[Mode, Mode] = ("fast", "replay-exact")
    for mode in modes:
        calls = our_calls(shape, ready.sets, mode)
        error = relative_error(calls[0]()[ready.lanes], ready.expected)
        if error > MAX_RELATIVE_ERROR:
            raise RedCheck(
                f"{shape.kernel} {shape.name}: expected error <= {MAX_RELATIVE_ERROR}, found {error:.2e}."
            )
        rows.append(_row(shape, f"dflash {mode}", time_graph(calls), True, error, None))
        if mode == "fast":
            rows.append(_row(shape, "dflash warm L2", time_graph(calls[:1]), True, error, None))
    return rows


def measure_peer(ready: Prepared, peer: Peer) -> Row:
    """Time a peer; one that cannot run the shape, or is wrong, is a row that says so."""
    shape, mask = ready.shape, peer.takes_tree_mask
    try:
        calls = peer.build(shape, ready.sets)
        error = relative_error(output_of(calls[0]())[ready.lanes], ready.expected)
        if error > MAX_RELATIVE_ERROR:
            return _row(shape, peer.name, None, mask, error, "wrong output")
        return _row(shape, peer.name, time_graph(calls), mask, error, None)
    except Exception as failure:
        return _row(shape, peer.name, None, mask, None, f"{type(failure).__name__}: {failure}"[:300])


def measure_accept(shape: Shape, compiled: bool) -> list[Row]:
    """Time acceptance; every variant must agree.

    Raises:
        RedCheck: they do not.
    """
    trees = [kernel_accept.make_trees(shape, seed) for seed in range(20)]
    sampled = kernel_accept.make_sampled(shape)
    variants: dict[str, list[Callable[[], Any]]] = {
        "dflash greedy": kernel_accept.our_calls(trees, None, "triton"),
        "dflash speculative": kernel_accept.our_calls(trees, sampled, "triton"),
        "one-thread walk": kernel_accept.walk_calls(trees),
        "torch operations": kernel_accept.our_calls(trees, None, "reference"),
    }
    if compiled:
        variants["torch.compile"] = kernel_accept.compiled_calls(trees)
    rows = []
    for name, calls in variants.items():
        law = kernel_accept.our_calls(trees[:1], sampled if "speculative" in name else None, "reference")[0]()
        found = calls[0]()
        if not (torch.equal(found.count, law.count) and torch.equal(found.bonus, law.bonus)):
            raise RedCheck(f"accept {shape.name}: {name} differs from the reference.")
        rows.append(_row(shape, name, time_graph(calls * 5), True, None, None))
    return rows


def _ways(shape: LayerShape, compiled: bool) -> list[Timed]:
    if isinstance(shape, HeadShape):
        return measure_head(shape, compiled)
    if isinstance(shape, PackShape):
        return measure_pack(shape, compiled)
    return measure_product(shape, compiled)


def measure_products(shape: LayerShape, compiled: bool) -> list[Row]:
    """Time a small product of a layer, the head or the packing of features, and its peers.

    Raises:
        RedCheck: our output is wrong.
    """
    rows = []
    for name, timing, same_numbers, error, failure in _ways(shape, compiled):
        if name.startswith("dflash") and not error <= MAX_RELATIVE_ERROR:
            raise RedCheck(
                f"{shape.name}: {name}: expected error <= {MAX_RELATIVE_ERROR}, found {error:.2e}."
            )
        rows.append(_row(shape, name, timing, same_numbers, error, failure))
    return rows


def chosen(shapes: Sequence[Any], only: Collection[str]) -> list[Any]:
    """The shapes of some kernels, or all of them."""
    return [shape for shape in shapes if not only or shape.kernel in only]


def start_gate() -> subprocess.Popen[str] | None:
    """Start the GPU tests where the checkout has them."""
    tests = Path(__file__).parents[2] / "tests" / "kernels"
    if not tests.is_dir():
        return None
    spread = ["-n", "8", "-p", "no:benchmark"] if importlib.util.find_spec("xdist") else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        *spread,
        str(tests),
    ]
    return subprocess.Popen(
        command, cwd=tests.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish_gate(gate: subprocess.Popen[str] | None) -> str:
    """Wait for the tests; what they concluded.

    Raises:
        RedCheck: one of them failed.
    """
    if gate is None:
        return "no test suite run; every measured output was compared with float64"
    output = gate.communicate()[0]
    if gate.returncode:
        raise RedCheck(f"pytest -m gpu failed, nothing is reported:\n{output[-3000:]}")
    return output.strip().splitlines()[-1]


def environment() -> dict[str, str]:
    """Date, card and versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


class Results(NamedTuple):
    """Everything that was measured."""

    ceilings: Ceilings
    gate: str
    rows: list[Row]


def measure(
    *,
    gate: bool = True,
    compiled: bool = True,
    seconds: float | None = None,
    only: Collection[str] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> Results:
    """Check, then measure everything.

    Args:
        gate: run the GPU tests first; every measured output is compared with float64 either way.
        compiled: also measure peers that torch.compile builds, which takes minutes.
        seconds: leave out what has not begun by then; our own kernels always run.
        only: names of kernels; all if empty.
        progress: told what is measured next.

    Raises:
        NoDevice: without a CUDA device.
        RedCheck: a check failed; nothing is reported.
    """
    if not torch.cuda.is_available():
        raise NoDevice
    begun = time.monotonic()
    shapes = chosen([*SHAPES, *EXTRA], only)
    products, trees = chosen([*PRODUCT_SHAPES, *HEAD_SHAPES, *PACK_SHAPES], only), chosen(ACCEPT_SHAPES, only)
    peers = [*ATTENTION_PEERS, *(COMPILED_PEERS if compiled else [])]
    progress("checking (pytest -m gpu) and compiling")
    tests = start_gate() if gate else None
    compile_ahead([*shapes, *products, *trees], compiled and seconds is None)
    verdict = finish_gate(tests)
    progress(verdict)
    ceilings = measure_ceilings()
    rows: list[Row] = []
    for shape in trees:
        rows += measure_accept(shape, compiled and seconds is None)
    for product in products:
        progress(f"{product.kernel} {product.name}")
        rows += measure_products(product, compiled and seconds is None)
    ready = [prepare(shape) for shape in shapes]
    for one in ready:
        progress(f"{one.shape.kernel} {one.shape.name}")
        rows += measure_ours(one)
    for peer in peers:
        progress(peer.name)
        for one in ready:
            if seconds is None or time.monotonic() - begun < seconds:
                rows.append(measure_peer(one, peer))
            else:
                rows.append(
                    _row(one.shape, peer.name, None, peer.takes_tree_mask, None, "left out: no time left")
                )
    return Results(ceilings, verdict, rows)


def document(results: Results) -> dict[str, Any]:
    """The results as one JSON document."""
    return {
        "schema": "dflash.bench_kernels/1",
        "environment": environment(),
        "gate": results.gate,
        "ceilings": results.ceilings._asdict(),
        "rows": [asdict(row) for row in results.rows],
    }


def main() -> None:
    """Measure and print the table; the first argument names the JSON, the second bounds the seconds."""
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else None
    say = partial(print, file=sys.stderr, flush=True)
    results = document(measure(gate=seconds is None, seconds=seconds, progress=say))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    print(as_text(results))


if __name__ == "__main__":
    main()
