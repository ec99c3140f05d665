"""Rounds on a GPU: kernels against PyTorch, graphs against launches, rows against the host's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest
import torch

from dflash.cli.main import run as run_command
from dflash.engine.dense.native import NativeDensePass
from dflash.engine.dense.rounds import DenseRounds
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.kernels.round_best import draft_best
from dflash.kernels.round_draft import DraftColumns, DraftLaw, LowRank, draft_level
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_rows import RowStores, keep_rows
from dflash.kernels.round_slots import SlotColumns, target_slots
from dflash.kernels.round_stamp import stamp
from dflash.target.native import proven
from dflash.target.native_layers import Way

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = {"plain": (0, 1), "chain": (3, 1), "tree": (3, 3)}


@pytest.fixture(autouse=True, scope="module")
def _exact_products() -> Iterator[None]:
    with device_runs.exact_products():
        yield


@pytest.fixture(scope="module")
def targets(tiny_folder: Path) -> dict[str, Any]:
    return device_runs.cuda_targets(tiny_folder)


@pytest.fixture(scope="module")
def drafter(targets: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return device_runs.write_cuda_drafter(targets["float32"], tmp_path_factory.mktemp("drafter"))


def recorded(
    target: Any, output: Path, drafter: str, shape: str, *, eager: bool = False, **given: Any
) -> Any:
    """The rows of one recording, and the engine that made it."""
    length, branches = SHAPES[shape]
    drafts = {"drafter": drafter, "draft_impl": "native"} if length else {"drafter": "none"}
    chosen = {"target_impl": "native", "lanes": 3, "max_new_tokens": 21, "draft_temperature": 4.0}
    settings = chosen | drafts | {"length": length, "branches": branches} | given
    run = draft_runs.session(target, output, **settings)
    if eager:
        run.engine.rounds.plan = replace(run.engine.rounds.plan, eager=True)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(7))
    run.record(run.conversations(entries, check=True))
    return draft_runs.rows(output), run.engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_fp32_rounds_are_those_of_the_host(
    targets: dict[str, Any], drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str,
    temperature: float,
) -> None:  # fmt: skip
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))
    found = []
    for rounds in ("host", "device"):
        given = {"rounds": rounds, "temperature": temperature}
        rows, engine = recorded(targets["float32"], tmp_path / rounds, drafter, shape, **given)
        assert isinstance(engine, DeviceEngine) == (rounds == "device")
        found.append(rows)
    device_runs.same_rows(*found)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_have_the_bits_of_launches(
    targets: dict[str, Any], drafter: str, tmp_path: Path, shape: str, temperature: float
) -> None:
    found = []
    for eager in (False, True):
        output = tmp_path / f"{eager}.parquet"
        given = {"eager": eager, "temperature": temperature, "features": "all"}
        rows, engine = recorded(targets["bfloat16"], output, drafter, shape, **given)
        assert (engine.rounds._built.graph is None) == eager
        found.append(rows)
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_groups_of_lanes_have_the_bits_of_all_together(
    targets: dict[str, Any], drafter: str, tmp_path: Path, shape: str, temperature: float
) -> None:
    """Their rounds run at the same time on two streams, over halves of the same caches."""
    found = []
    for overlap in ("none", "groups", "groups"):
        given = {"temperature": temperature, "features": "all", "feature_dtype": "int8", "lanes": 5}
        given |= {"overlap": overlap, "numerics": "replay-exact", "max_new_tokens": 90}
        rows, engine = recorded(targets["bfloat16"], tmp_path / f"{len(found)}", drafter, shape, **given)
        assert len({group.stream for group in engine.groups}) == (1 if overlap == "none" else 2)
        found.append(rows)
    for again in found[1:]:
        device_runs.same_rows(again, found[0], atol=0.0, rtol=0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_rounds_commit_the_tokens_of_the_host(
    targets: dict[str, Any], drafter: str, tmp_path: Path, shape: str, temperature: float
) -> None:
    found = []
    for rounds in ("host", "device"):
        given = {"rounds": rounds, "temperature": temperature}
        rows, _ = recorded(targets["bfloat16"], tmp_path / rounds, drafter, shape, **given)
        found.append(draft_runs.trunks(rows))
    assert found[0] == found[1]


@pytest.mark.parametrize("numerics", ["fast", "replay-exact"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", SHAPES)
def test_recordings_check_and_walk(
    targets: dict[str, Any], drafter: str, tmp_path: Path, shape: str, temperature: float, numerics: str
) -> None:
    """Dense rows are near live ones, and have their bits in `replay-exact`."""
    output = tmp_path / "run.parquet"
    given = {"temperature": temperature, "dense": True, "numerics": numerics, "max_new_tokens": 90}
    target = proven(targets["bfloat16"], Way(numerics))
    rows, engine = recorded(target, output, drafter, shape, **given)
    assert isinstance(engine.dense, DenseRounds)
    for words in (["--check"], ["--policy", "match"]):
        assert run_command(["replay", str(output), *words]) == 0
    if numerics == "replay-exact":
        device_runs.same_as_live(rows)
    else:
        device_runs.near_live(rows, target.tie_tolerance / (temperature or 1.0))
    for row in rows:
        if row["kind"] == 0:
            drafting = row["draft_us"] > 0 or shape == "plain"
            assert drafting
            assert row["draft_us"] <= row["round_us"]
            assert 0 < row["verify_us"] <= row["round_us"]


@pytest.mark.parametrize("drafts", ["native", "generic"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_dense_rows_follow_rounds_through_the_host(
    targets: dict[str, Any], drafter: str, tmp_path: Path, temperature: float, drafts: str
) -> None:
    """What the target says has the bits of live rows where both drafted the same tokens."""
    given = {"temperature": temperature, "dense": True, "rounds": "host", "draft_impl": drafts}
    output = tmp_path / "run.parquet"
    target = proven(targets["bfloat16"], Way("replay-exact"))
    rows, engine = recorded(target, output, drafter, "tree", numerics="replay-exact", **given)
    assert isinstance(engine.dense, NativeDensePass)
    assert run_command(["replay", str(output), "--check"]) == 0
    assert device_runs.same_slots_as_live(rows) > 9


def test_rounds_go_on_in_larger_caches(targets: dict[str, Any], drafter: str, tmp_path: Path) -> None:
    found = []
    for capacity in (40, 1024):
        output = tmp_path / f"{capacity}.parquet"
        run = draft_runs.session(
            targets["bfloat16"], output, drafter=drafter, draft_impl="native", target_impl="native", length=3,
            branches=2, lanes=2, max_new_tokens=60,
        )  # fmt: skip
        run.trunk.cache.capacity = run.drafter.cache.capacity = capacity
        entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(3))
        run.record(run.conversations(entries, check=True))
        found.append(draft_runs.trunks(draft_runs.rows(output)))
    assert found[0] == found[1]


def test_the_device_reads_its_clock() -> None:
    times = torch.zeros(4, dtype=torch.int64, device="cuda")
    for place in range(4):
        stamp(times, place)
    read = times.tolist()
    assert read == sorted(read)
    assert read[0] > 0


def lanes_of(lanes: int) -> RoundLanes:
    state = RoundLanes.make(lanes, "cuda")
    state.live.fill_(1)
    state.lengths.copy_(torch.arange(lanes) * 17 + 3)
    state.anchors.copy_(torch.arange(lanes) * 5)
    state.temperatures.copy_(torch.arange(lanes) * 0.4)
    state.draft_temperatures.copy_(torch.arange(lanes) * 0.4)
    state.keys.copy_(torch.arange(2 * lanes).view(lanes, 2) * 7919)
    return state


def room(lanes: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((lanes, *size), -7, dtype=dtype, device="cuda")


@pytest.mark.parametrize("vocabulary", [49152, 128256])
@pytest.mark.parametrize("shape", [(0, 1), (7, 1), (4, 4)])
def test_slots_and_levels_are_those_of_pytorch(shape: tuple[int, int], vocabulary: int) -> None:
    g = torch.Generator(device="cuda").manual_seed(sum(shape))
    lanes, state, tree = 3, lanes_of(3), RoundTree.make(*shape, 3, "cuda")
    logits = (3 * torch.randn((lanes, tree.nodes + 1, vocabulary), generator=g, device="cuda")).bfloat16()
    drafted = []
    for impl in ("triton", "reference"):
        out = draft_columns(tree, lanes)
        bias = LowRank(logits[0, 0, : 8 * 1000].view(1000, 8).repeat(150, 1)[:vocabulary].contiguous(),
                       logits[0, 0].view(-1, 1).repeat(1, 8).contiguous() * 0.01)  # fmt: skip
        for depth in range(1, tree.length + 1):
            draft_level(logits[:, : tree.length].contiguous(), depth, bias, DraftLaw(8), tree, state, out,
                        impl=impl)  # fmt: skip
        drafted.append(out)
    for mine, theirs in zip(*drafted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-4, equal_nan=True)
    tokens, asked = drafted[1].tokens, drafted[1].ids
    judged = []
    for impl in ("triton", "reference"):
        slots, nodes = (tree.nodes + 1,), (tree.nodes,)
        whole = room(lanes, *slots, 16, dtype=torch.int32), room(lanes, *slots, 16)
        floats = [room(lanes, *slots) for _ in range(5)]
        out = SlotColumns(
            *whole, room(lanes, *slots, dtype=torch.int32), *floats, room(lanes, *nodes), room(lanes, *nodes),
            room(lanes, tree.expanded, 16),
        )  # fmt: skip
        judged.append(target_slots(logits, tokens, asked, tree, state, out, impl=impl))
    for mine, theirs in zip(*judged, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-4, equal_nan=True)


def test_rows_move_as_in_pytorch() -> None:
    g = torch.Generator(device="cuda").manual_seed(1)
    path = torch.tensor([[1, 3, 5], [-1, -1, -1], [2, -1, -1]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([4, 0, 30], dtype=torch.int32, device="cuda")
    moved = []
    for impl in ("triton", "reference"):
        g.manual_seed(1)
        stores = [torch.randn((3, 3, 64, 64), generator=g, device="cuda").bfloat16() for _ in range(60)]
        keep_rows(RowStores.of(stores), path, lengths, kept=3, impl=impl)
        moved.append(torch.stack(stores))
    assert torch.equal(*moved)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(7, 1), (4, 4)])
def test_levels_at_once_are_those_of_pytorch(shape: tuple[int, int], biased: bool) -> None:
    g = torch.Generator(device="cuda").manual_seed(sum(shape))
    lanes, vocabulary, tree = 3, 49152, RoundTree.make(*shape, 3, "cuda")
    state = lanes_of(lanes)
    state.draft_temperatures.zero_()
    logits = (3 * torch.randn((lanes, 8, vocabulary), generator=g, device="cuda")).bfloat16()[:, 1:]
    table = torch.randn((2, vocabulary, 8), generator=g, device="cuda").bfloat16()
    bias = LowRank(*table) if biased else None
    first, drafted = 1 if tree.branches == 1 else 2, []
    for impl in ("triton", "reference"):
        out = draft_columns(tree, lanes)
        if first == 2:
            draft_level(logits, 1, bias, DraftLaw(8), tree, state, out, impl=impl)
        draft_best(logits, bias, DraftLaw(8), tree, state, out, first=first, impl=impl)
        drafted.append(out)
    for mine, theirs in zip(*drafted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-4, equal_nan=True)


def draft_columns(tree: RoundTree, lanes: int) -> DraftColumns:
    ints = room(lanes, tree.nodes, dtype=torch.int32), room(lanes, tree.nodes, dtype=torch.int32)
    seen = room(lanes, tree.expanded), room(lanes, tree.expanded, 16, dtype=torch.int32)
    floats = [room(lanes, tree.nodes) for _ in range(3)]
    rows = room(lanes, tree.nodes + 1, dtype=torch.int32)
    return DraftColumns(*ints, *floats, *seen, room(lanes, tree.expanded, 16), rows)
