"""The fused head in Triton's interpreter and in PyTorch, against float64 and the recorder on the CPU."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.lm_head_call import HeadScores
from dflash.kernels.lm_head_plan import HEAD_TILES, HeadTile
from dflash.kernels.lm_head_topk import head_scratch, lm_head_topk
from dflash.kernels.row_norm import CarriedNorm
from dflash.target.sampling import Sampling
from dflash.target.statistics import target_law
from tests.kernels.head_cases import (
    Head,
    head_of_row,
    logits_of,
    make_head,
    noise_of,
    poisoned,
    row_of,
    same_bits,
)
from tests.kernels.tree_cases import assert_close

pytestmark = pytest.mark.usefixtures("interpreted")
IMPLS = ["triton", "reference"]
LIMIT = {torch.float32: 1e-5, torch.float16: 1e-5}
SMALL = HeadTile(32, 32, 4, 2, 4)


def score(case: Head, top: int, impl: str = "triton", **options: object) -> HeadScores:
    out = poisoned(len(case.hidden), top, case.asked.shape[1])
    given = {"asked": case.asked, "draw": case.draw, "out": out, "impl": impl, "tile": SMALL} | options
    return lm_head_topk(case.hidden, case.weight, top, **given)


def check_scores(found: HeadScores, logits: torch.Tensor, asked: torch.Tensor, limit: float) -> None:
    """Largest logits, log-sum-exp and asked logits against float64."""
    best = torch.sort(logits, dim=-1, descending=True, stable=True)
    top = found.ids.shape[1]
    assert torch.equal(found.ids.long(), best.indices[:, :top])
    assert_close("values", found.values, best.values[:, :top], limit)
    assert_close("lse", found.lse, torch.logsumexp(logits, -1), limit)
    inside = (asked >= 0) & (asked < logits.shape[1])
    expected = logits.gather(1, asked.clamp(0, logits.shape[1] - 1).long())
    assert found.asked is not None
    assert_close("asked", found.asked.where(inside, 0), expected.where(inside, 0), limit)
    assert (found.asked[~inside] == -torch.inf).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize(
    ("rows", "vocabulary", "width", "top"),
    [(1, 1, 16, 1), (3, 97, 48, 1), (16, 64, 32, 5), (17, 65, 80, 8), (2, 131, 32, 32), (34, 33, 16, 3)],
)
def test_against_float64(
    rows: int, vocabulary: int, width: int, top: int, dtype: torch.dtype, impl: str
) -> None:
    case = make_head(rows, vocabulary, width, dtype=dtype, seed=rows)
    check_scores(score(case, top, impl), logits_of(case), case.asked, LIMIT[dtype])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 40.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_recorder_makes_the_same_choice(seed: int, temperature: float, impl: str) -> None:
    """Logits are whole quarters, so that they agree bit for bit: choice, lead and top-k must too."""
    case = make_head(6, 160, 16, whole=True, seed=seed)
    case.draw.temperatures.fill_(temperature)
    logits = logits_of(case).float()
    noise = torch.stack([noise_of(case.draw, row, 160) for row in range(6)]) if temperature else None
    law = target_law(logits, Sampling(temperature), 9, noise)
    found = score(case, 9, impl)
    assert found.choice is not None
    assert found.choice.token.tolist() == law.slots["slot_choice"].tolist()
    assert found.choice.logit.tolist() == law.slots["slot_choice_logit"].tolist()
    assert found.choice.lead.tolist() == law.slots["slot_gap"].tolist()
    assert found.ids.flatten().tolist() == law.slots["slot_topk_token"].tolist()
    assert found.values.flatten().tolist() == law.slots["slot_topk_logit"].tolist()
    assert_close("lse", found.lse, torch.from_numpy(law.slots["slot_lse"]), 1e-6)
    if temperature:
        assert_close("lse of p", found.choice.lse, torch.from_numpy(law.slots["slot_lse_p"]), 1e-6)
    else:
        assert found.choice.lse.isnan().all()


@pytest.mark.parametrize("impl", IMPLS)
def test_noise_of_independent_drafts(impl: str) -> None:
    case = make_head(4, 150, 16, whole=True)
    purposes = torch.tensor([1, 257, 513, 3], dtype=torch.int32)
    paths = torch.tensor([0, -5, 7, 2**31 - 1], dtype=torch.int32)
    draw = case.draw._replace(temperatures=torch.ones(4), purposes=purposes, paths=paths)
    found = score(case, 2, impl, draw=draw)
    race = logits_of(case).float() - torch.stack([noise_of(draw, row, 150) for row in range(4)])
    assert found.choice is not None
    assert found.choice.token.tolist() == race.argmax(-1).tolist()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_draft_vocabulary_speaks_in_the_ids_of_the_target(impl: str) -> None:
    """Equal to a head over the whole vocabulary whose other rows can not be drafted."""
    case = make_head(5, 90, 32, whole=True, seed=2)
    ids = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:90].sort().values.int()
    found = score(case, 7, impl, ids=ids)
    whole = torch.full((5, 400), -torch.inf, dtype=torch.float64)
    whole[:, ids.long()] = logits_of(case)
    best = torch.sort(whole, dim=-1, descending=True, stable=True)
    assert torch.equal(found.ids.long(), best.indices[:, :7])
    assert found.choice is not None
    for row in range(5):
        temperature = float(case.draw.temperatures[row])
        noise = noise_of(case.draw, row, 400) if temperature else 0.0
        centred = (whole[row] - whole[row].max()).float()
        race = centred / case.draw.temperatures[row] - noise if temperature else centred
        assert int(found.choice.token[row]) == int(race.argmax())


@pytest.mark.parametrize("top", [1, 4])
def test_the_split_and_the_tile_change_no_id(top: int) -> None:
    case = make_head(9, 130, 32, seed=4)
    one = score(case, top, tile=SMALL._replace(programs=1))
    assert same_bits(score(case, top, tile=SMALL._replace(programs=3)), one)
    other = score(case, top, tile=HeadTile(64, 16, 4, 2, 2))
    assert torch.equal(other.ids, one.ids)
    assert other.choice is not None
    assert one.choice is not None
    assert torch.equal(other.choice.token, one.choice.token)


def test_the_merge_goes_on_where_it_can_not_hold_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_head(3, 200, 16, seed=8)
    once = score(case, 3)
    monkeypatch.setattr("dflash.kernels.lm_head_plan.TILES_A_WARP", 1)
    parts = score(case, 3)
    assert once.choice is not None
    assert parts.choice is not None
    assert torch.equal(parts.ids, once.ids)
    assert torch.equal(parts.choice.token, once.choice.token)
    assert torch.equal(parts.choice.lead, once.choice.lead)
    assert_close("lse", parts.lse, once.lse, 1e-6)
    drawn = case.draw.temperatures > 0
    assert_close("lse of p", parts.choice.lse[drawn], once.choice.lse[drawn], 1e-6)


def test_replay_exact_ignores_the_other_rows() -> None:
    case = make_head(3, 70, 48, seed=5)
    together = score(case, 4, mode="replay-exact")
    for row in range(3):
        alone = score(head_of_row(case, row), 4, mode="replay-exact")
        assert same_bits(alone, row_of(together, row))


@pytest.mark.parametrize("impl", IMPLS)
def test_ties_go_to_the_lowest_id(impl: str) -> None:
    # processors sum in orders of their own
    case = make_head(3, 80, 16, whole=True, seed=6)
    case.weight[:] = case.weight[0]
    case.draw.temperatures.zero_()
    found = score(case, 6, impl)
    assert found.ids.tolist() == [list(range(6))] * 3
    assert found.choice is not None
    assert found.choice.token.tolist() == [0] * 3
    assert found.choice.lead.tolist() == [0.0] * 3


LADDERS = {
    "rising": torch.arange(300.0),
    "falling": -torch.arange(300.0),
    "rising in pairs": torch.arange(300.0).div(2, rounding_mode="floor"),
    "three values": torch.arange(300.0) % 3,
    "one value": torch.zeros(300),
}


@pytest.mark.parametrize("name", LADDERS)
@pytest.mark.parametrize("top", [2, 8, 16, 32])
def test_every_token_of_a_tile_may_be_among_the_best(top: int, name: str) -> None:
    """Exact logits, so that ids are those of a stable sort, whatever the tile, its warps and the split."""
    weight = torch.zeros(300, 16)
    weight[:, 0] = LADDERS[name] / 4
    hidden = torch.zeros(3, 16)
    hidden[:, 0] = torch.tensor([1.0, -1.0, 0.5])
    best = torch.sort(hidden @ weight.T, dim=-1, descending=True, stable=True)
    for tile in (HeadTile(128, 16, 4, 2, 1), HeadTile(64, 16, 8, 2, 3)):
        found = lm_head_topk(hidden, weight, top, tile=tile)
        assert torch.equal(found.ids.long(), best.indices[:, :top])
        assert torch.equal(found.values, best.values[:, :top])


@pytest.mark.parametrize("rows", [1, 17, 33])
def test_rows_of_a_half_that_is_not_full(rows: int) -> None:
    """Rows past 16 are judged as a half of their tile, which may hold none."""
    case = make_head(rows, 70, 16, whole=True, seed=rows)
    expected = score(case, 8, "reference")
    found = score(case, 8)
    assert torch.equal(found.ids, expected.ids)
    assert found.choice is not None
    assert expected.choice is not None
    assert torch.equal(found.choice.token, expected.choice.token)
    assert torch.equal(found.choice.lead, expected.choice.lead)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("parts", [1, 3, 70])
def test_a_norm_on_its_way_is_that_of_the_rows(parts: int, impl: str) -> None:
    case = make_head(5, 90, 48, seed=parts)
    gain = 0.5 + torch.rand(48, generator=torch.Generator().manual_seed(1))
    shares = torch.rand(parts, 5, generator=torch.Generator().manual_seed(2))
    squares = shares / shares.sum(0) * case.hidden.square().sum(1)
    norm = CarriedNorm(gain, case.hidden * gain, squares)
    eps = 0.125
    wide = case.hidden.double()
    normed = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps) * gain.double()
    logits = normed @ case.weight.double().T
    found = score(case, 6, impl, norm=norm, eps=eps)
    check_scores(found, logits, case.asked, 1e-5)
    law = score(Head(normed.float(), *case[1:]), 6, "reference")
    assert found.choice is not None
    assert law.choice is not None
    assert torch.equal(found.choice.token, law.choice.token)


UNUSUAL = {
    "minus infinity": ({}, [9, 33, 0]),
    "infinity": ({5: torch.inf, 40: torch.inf}, [5, 40, 9]),
    "no number": ({5: torch.inf, 20: torch.nan, 60: torch.nan}, [20, 60, 5]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_finite(name: str, impl: str) -> None:
    """Infinities are values like others, and NaN is the largest one."""
    logits, expected = UNUSUAL[name]
    case = make_head(1, 70, 16)
    case.weight[:] = -torch.inf
    case.weight[[9, 33]] = 0.125
    for token, value in logits.items():
        case.weight[token] = value
    case.hidden[:] = 1.0
    found = score(case, 3, impl)
    assert found.ids.tolist() == [expected]
    law = torch.logsumexp(torch.tensor([2.0, 2.0, *logits.values()]), 0)
    assert torch.equal(found.lse.isnan(), law.isnan()[None])
    assert law.isnan() or found.lse.item() == pytest.approx(law.item())
    assert found.choice is not None
    assert found.choice.token.item() == expected[0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("impl", IMPLS)
def test_a_head_of_minus_infinity_takes_the_lowest_id(impl: str) -> None:
    case = make_head(2, 40, 16)
    case.hidden[:] = 1.0
    case.weight[:] = -torch.inf
    found = score(case, 2, impl)
    assert found.ids.tolist() == [[0, 1]] * 2
    assert found.lse.tolist() == [-torch.inf] * 2
    assert found.choice is not None
    assert found.choice.token.tolist() == [0, 0]


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_a_scale_multiplies_the_logits(scale: float) -> None:
    case = make_head(2, 50, 16, whole=True)
    plain, scaled = score(case, 2), score(case, 2, scale=scale)
    assert torch.equal(scaled.values, plain.values * scale)


@pytest.mark.slow
@pytest.mark.parametrize("key", HEAD_TILES, ids=str)
def test_every_production_tile(key: tuple[int, int]) -> None:
    rows, item = key
    case = make_head(rows - 3, 150, 144, dtype=torch.float16 if item == 2 else torch.float32)
    check_scores(score(case, 4, tile=HEAD_TILES[key]), logits_of(case), case.asked, 1e-5)


def test_scratch_and_outputs_serve_again() -> None:
    case = make_head(3, 60, 16)
    scratch = head_scratch(case.hidden, case.weight, 3, tile=SMALL)
    first = score(case, 3, scratch=scratch)
    scratch.keys.fill_(0)
    scratch.sums.fill_(torch.nan)
    scratch.picks.fill_(0)
    assert same_bits(score(case, 3, scratch=scratch), first)
    bare = lm_head_topk(case.hidden, case.weight, 3, tile=SMALL)
    assert bare.asked is bare.choice is None
    assert torch.equal(bare.ids, first.ids)


def test_what_other_programs_have_met_changes_nothing() -> None:
    """Borders may be anything that as many values have reached as are wanted, and are put back."""
    case = make_head(5, 200, 16, whole=True)
    scratch = head_scratch(case.hidden, case.weight, 8, tile=SMALL)
    lowest = scratch.borders.clone()
    first = score(case, 8, scratch=scratch)
    assert torch.equal(scratch.borders, lowest)
    bits = first.values[:, -1:].view(torch.int32)
    scratch.borders[:, :8] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    assert same_bits(score(case, 8, scratch=scratch), first)
    assert torch.equal(scratch.borders, lowest)
