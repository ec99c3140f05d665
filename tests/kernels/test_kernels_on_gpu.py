"""What the interpreter cannot show: compiled kernels on a device, their bits, graphs and memory accesses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.kernels.accept_tree import Sampled, accept_tree
from dflash.kernels.attention_plan import TILES, Tile
from dflash.kernels.block_attention import block_attention
from dflash.kernels.philox import philox
from dflash.kernels.tree_attention import attention_scratch, tree_attention
from dflash.policy.philox import philox4x32
from tests.kernels.accept_cases import draw
from tests.kernels.tree_cases import Case, assert_close, dense_oracle, make_case, random_parents

pytestmark = pytest.mark.gpu
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def trees(lanes: int, nodes: int, pads: int = 0, seed: int = 0) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [random_parents(nodes, g, pads) for _ in range(lanes)]


def run(case: Case, **options: object) -> torch.Tensor:
    out = torch.full_like(case.q, torch.nan)
    nodes = len(case.parents[0])
    return tree_attention(
        case.q, case.k, case.v, case.lengths, case.words, nodes, pages=case.pages, out=out, **options
    )


@pytest.mark.parametrize(
    ("group", "nodes", "head", "page", "dtype"),
    [
        (1, 1, 64, 0, torch.bfloat16),
        (3, 9, 96, 0, torch.float16),
        (4, 17, 128, 16, torch.bfloat16),
        (5, 31, 64, 64, torch.float16),
        (8, 63, 128, 0, torch.bfloat16),
        (4, 63, 96, 128, torch.bfloat16),
        (3, 16, 64, 16, torch.bfloat16),
        (4, 3, 128, 64, torch.float16),
    ],
)
def test_against_float64(group: int, nodes: int, head: int, page: int, dtype: torch.dtype) -> None:
    case = make_case(
        trees(4, nodes, pads=nodes // 8), [0, 1, 129, 700], group, head, dtype=dtype, page=page, device="cuda"
    )
    expected = dense_oracle(case)
    for mode in ("fast", "replay-exact"):
        found = run(case, mode=mode)
        assert_close(mode, found, expected, LIMIT[dtype])
        assert torch.equal(run(case, mode=mode), found)


@pytest.mark.parametrize("name", ["chain", "star"])
def test_64_nodes(name: str) -> None:
    shape = [j - 1 for j in range(64)] if name == "chain" else [-1] * 64
    case = make_case([shape] * 2, [0, 1000], 4, 128, dtype=torch.bfloat16, device="cuda")
    assert_close(name, run(case), dense_oracle(case), 1e-2)


@pytest.mark.parametrize(("head", "tile"), sorted({(key[0], tile) for key, tile in TILES.items()}), ids=str)
def test_every_tile_repeats_its_bits(head: int, tile: Tile) -> None:
    nodes = max(1, tile.block_m // 4 - 1)
    case = make_case(trees(1, nodes), [2000], 4, head, dtype=torch.bfloat16, device="cuda")
    first = run(case, tile=tile)
    assert_close("tile", first, dense_oracle(case), 1e-2)
    for _ in range(100):
        assert torch.equal(run(case, tile=tile), first)


def test_ragged_batches_that_fill_the_device() -> None:
    lengths = [0, 5000, 1, 700, 64, 3000, 129, 2000] * 5
    case = make_case(trees(40, 15), lengths, 4, 128, kv_heads=8, dtype=torch.bfloat16, device="cuda")
    first = run(case)
    assert_close("ragged", first, dense_oracle(case), 1e-2)
    for _ in range(20):
        assert torch.equal(run(case), first)


@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("nodes", [3, 15, 63])
def test_replay_exact_ignores_the_other_lanes(nodes: int, times: int) -> None:
    lengths = [700, 0, 4000, 65, 1] * times
    case = make_case(trees(5 * times, nodes), lengths, 4, 128, dtype=torch.bfloat16, device="cuda")
    together = run(case, mode="replay-exact")
    for lane in range(5):
        alone = Case(*(t[lane : lane + 1] for t in case[:5]), case.parents[lane : lane + 1], None)
        assert torch.equal(run(alone, mode="replay-exact")[0], together[lane])


def test_whole_equals_segments() -> None:
    case = make_case(trees(2, 15), [3000, 800], 4, 128, dtype=torch.float16, device="cuda")
    tile = Tile(64, 64, 4, 3, 1, 8192, False, 4, 8)
    many = run(case, tile=tile._replace(programs=264, min_chunk=64))
    assert_close("segments", many, run(case, tile=tile), 1e-3)


@pytest.mark.parametrize("n", [8, 16, 64])
def test_block_equals_a_tree_of_full_words(n: int) -> None:
    chain = [j - 1 for j in range(n)]
    case = make_case([chain] * 2, [0, 900], 4, 128, dtype=torch.bfloat16, device="cuda")
    full = torch.full((2, n), -1 if n == 64 else (1 << n) - 1, device="cuda")
    q = case.q[:, 1:].contiguous()
    expected = tree_attention(
        q.double(), case.k.double(), case.v.double(), case.lengths, full, n, impl="reference"
    )
    assert_close("block", block_attention(q, case.k, case.v, case.lengths), expected, 1e-2)


def test_a_graph_follows_lengths_and_trees_on_the_device() -> None:
    cases = [
        make_case(
            trees(3, 15, seed=s),
            lengths,
            4,
            128,
            dtype=torch.bfloat16,
            device="cuda",
            spare=900 - max(lengths),
        )
        for s, lengths in enumerate([[800, 3, 64], [0, 650, 20]])
    ]
    held = Case(*(t.clone() for t in cases[0][:5]), cases[0].parents, None)
    scratch = attention_scratch(held.q, held.k, held.v, held.lengths, held.words, 15)
    out = torch.empty_like(held.q)
    arguments = (held.q, held.k, held.v, held.lengths, held.words, 15)
    tree_attention(*arguments, out=out, scratch=scratch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tree_attention(*arguments, out=out, scratch=scratch)
    for case in [*cases, cases[0]]:
        for mine, theirs in zip(held[:5], case[:5], strict=True):
            mine.copy_(theirs)
        out.fill_(torch.nan)
        graph.replay()
        assert_close("graph", out, dense_oracle(case), 1e-2)


def test_philox_words_are_those_of_the_cpu() -> None:
    rng = np.random.default_rng(11)
    counters = rng.integers(0, 2**32, (100_000, 4), dtype=np.uint32)
    keys = rng.integers(0, 2**32, (100_000, 2), dtype=np.uint32)
    found = philox(
        torch.from_numpy(counters.view(np.int32)).cuda(), torch.from_numpy(keys.view(np.int32)).cuda()
    )
    assert np.array_equal(found.cpu().numpy().view(np.uint32), philox4x32(counters, keys))


@pytest.mark.parametrize("rule", ["greedy", "match", "speculative"])
@pytest.mark.parametrize(("nodes", "pads"), [(1, 0), (17, 3), (32, 0), (64, 5)])
def test_acceptance_equals_the_reference(nodes: int, pads: int, rule: str) -> None:
    case = draw(200, nodes, seed=nodes, pads=pads)

    def judge(device: str, impl: str) -> tuple[torch.Tensor, ...]:
        d = case.to(device)
        sampled = Sampled(d.logp, d.logq, d.residual, d.keys, d.positions, d.paths)
        return accept_tree(
            d.tokens, d.parents, d.words, d.choices, rule=rule, impl=impl,
            logp=d.logp if rule == "match" else None, sampled=sampled if rule == "speculative" else None,
        )  # fmt: skip

    for ours, theirs in zip(judge("cuda", "triton"), judge("cpu", "reference"), strict=True):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    script = Path(__file__).with_name("sanitized.py")
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, str(script)],
        capture_output=True, text=True, cwd=script.parents[2], timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
