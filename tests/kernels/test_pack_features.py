"""Packing of features in Triton's interpreter and in PyTorch, against loops in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.kernels.feature_codes import CODES, Encoding, decode_features, encode_features
from dflash.kernels.pack_features import FeatureRing, PackTile, feature_ring, pack_features
from tests.kernels.pack_cases import make_round

pytestmark = pytest.mark.usefixtures("interpreted")
IMPLS = ["triton", "reference"]
ENCODINGS: list[Encoding] = list(CODES)
SMALL = PackTile(2, 4, 5)


def poisoned(capacity: int, width: int, encoding: Encoding) -> FeatureRing:
    ring = feature_ring(capacity, width, encoding, "cpu")
    ring.values.view(torch.uint8).fill_(0x5A)
    if ring.scales is not None:
        ring.scales.fill_(torch.nan)
    return ring


def oracle(row: np.ndarray, encoding: Encoding) -> tuple[list[float], list[float]]:
    """Decoded values and scales of one row, code by code, in float32 as the format says."""
    grid = np.arange(-127, 128, dtype=np.float64)
    if encoding == "fp8":
        positive = [m / 512 for m in range(8)]
        positive += [(8 + m) / 8 * 2.0**e for e in range(-6, 9) for m in range(8) if (e, m) != (8, 7)]
        grid = np.array(sorted({*positive, *(-v for v in positive)}))
    values, scales = [], []
    for start in range(0, len(row), 128):
        group = row[start : start + 128].astype(np.float32)
        largest = np.float32(127 if encoding == "int8" else 448)
        peak = np.abs(group).max()
        scaled = (group * (largest / peak)).astype(np.float64)
        scales.append(float(peak / largest))
        for value in scaled:
            distance = np.abs(grid - value)
            nearest = np.flatnonzero(distance == distance.min())
            # of two neighbours the even one: both grids alternate between even and odd codes from zero on
            zero = int(np.flatnonzero(grid == 0.0)[0])
            best = min(nearest, key=lambda i: abs(int(i) - zero) % 2)
            values.append(float(grid[best]) * scales[-1])
    return values, scales


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"]
)
@pytest.mark.parametrize(("lanes", "nodes", "width"), [(1, 0, 128), (3, 5, 72), (5, 3, 400)])
def test_the_ring_holds_what_was_committed(
    lanes: int, nodes: int, width: int, dtype: torch.dtype, encoding: Encoding, impl: str
) -> None:
    """Three rounds in a row, so that the ring turns over; codes and scales bit for bit."""
    ring = poisoned(lanes * (nodes + 1) + 2, width, encoding)
    seen = 0
    for seed in range(3):
        case = make_round(lanes, nodes, width, dtype, seed)
        pack_features(*case, ring, impl=impl, tile=SMALL)
        values, scales = encode_features(case.rows, encoding)
        place = (seen + torch.arange(len(case.rows))) % len(ring.values)
        assert torch.equal(ring.values.view(torch.uint8)[place], values.contiguous().view(torch.uint8))
        if scales is not None:
            assert ring.scales is not None
            assert torch.equal(ring.scales[place], scales)
        seen += len(case.rows)
        assert int(ring.written) == seen
        assert int(ring.tickets) == 0


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("lanes", [1, 5])
def test_lanes_that_rest_commit_nothing_and_the_span_is_told(lanes: int, impl: str) -> None:
    """Whatever was accepted there, which is of the request before."""
    ring, span, seen = poisoned(50, 72, "int8"), torch.full((2,), -1), 0
    for seed in range(6):
        case = make_round(lanes, 4, 72, torch.float32, seed)
        live = torch.randint(0, 2, (lanes,), generator=torch.Generator().manual_seed(seed)).int()
        pack_features(*case, ring, live=live, span=span, impl=impl, tile=SMALL)
        rows = case._replace(count=torch.where(live > 0, case.count, -1)).rows
        values, scales = encode_features(rows, "int8")
        assert span.tolist() == [seen, seen + len(rows)]
        place = (seen + torch.arange(len(rows))) % 50
        assert torch.equal(ring.values[place], values)
        assert ring.scales is not None
        assert torch.equal(ring.scales[place], scales)
        seen += len(rows)


@pytest.mark.parametrize("impl", IMPLS)
def test_nothing_else_is_written(impl: str) -> None:
    ring = poisoned(40, 136, "int8")
    before = ring.values.clone()
    case = make_round(3, 4, 136, torch.float32)
    pack_features(*case, ring, impl=impl, tile=SMALL)
    assert torch.equal(ring.values[len(case.rows) :], before[len(case.rows) :])


@pytest.mark.parametrize("encoding", ["int8", "fp8"])
def test_codes_are_the_nearest_of_their_grid(encoding: Encoding) -> None:
    g = torch.Generator().manual_seed(3)
    states = torch.randn((4, 300), generator=g)
    # halves and quarters of a step, where ties are
    states[0, :128] = torch.arange(-64, 64) / 2.0 * (127.0 / 32.0 if encoding == "int8" else 14.0)
    states[1, :128] = torch.arange(128) / 1024.0
    states[1, 0] = 448.0
    values, scales = encode_features(states, encoding)
    decoded = decode_features(values, scales)
    for row in range(4):
        wanted, steps = oracle(states[row].numpy(), encoding)
        assert scales is not None
        assert scales[row].tolist() == steps
        assert decoded[row].tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-30)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_not_finite_or_tiny(encoding: Encoding, impl: str) -> None:
    """A group with infinities or NaN has the scale NaN; zeros and subnormal numbers stay finite."""
    taps = torch.zeros((1, 1, 5 * 128))
    taps[0, 0, 3] = torch.inf
    taps[0, 0, 128 + 7] = torch.nan
    taps[0, 0, 256 + 1] = 1e-42
    taps[0, 0, 384 + 1] = -3e38
    ring = poisoned(1, 640, encoding)
    nothing = torch.empty((1, 0), dtype=torch.int32)
    pack_features(taps, torch.zeros(1, dtype=torch.int32), nothing, ring, impl=impl, tile=SMALL)
    values, scales = encode_features(taps[0], encoding)
    decoded = decode_features(ring.values, ring.scales)[0]
    if scales is not None:
        assert ring.scales is not None
        assert ring.scales.isnan().tolist() == [[True, True, False, False, False]]
        assert torch.equal(ring.scales[0, 2:], scales[0, 2:])
        assert not ring.values.float()[0, :256].any()
    assert torch.equal(decoded[256:], decode_features(values, scales)[0, 256:])
    assert decoded[256:].isfinite().all()


def test_rows_with_gaps_between_them() -> None:
    wide = torch.randn((2, 3, 256), generator=torch.Generator().manual_seed(0))
    count, path = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    rings = [poisoned(8, 128, "fp8") for _ in range(2)]
    pack_features(wide[..., :128], count, path, rings[0], tile=SMALL)
    pack_features(wide[..., :128].contiguous(), count, path, rings[1], tile=SMALL)
    assert torch.equal(rings[0].values.view(torch.uint8), rings[1].values.view(torch.uint8))


@pytest.mark.parametrize("encoding", ["int8", "fp8"])
def test_decoding_comes_close(encoding: Encoding) -> None:
    states = torch.randn((16, 1728), generator=torch.Generator().manual_seed(0))
    decoded = decode_features(*encode_features(states, encoding))
    error = float((decoded - states).norm() / states.norm())
    assert error < (0.008 if encoding == "int8" else 0.03)
