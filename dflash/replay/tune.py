"""Tuning: replay many policies on one recording, price them, and say which to run.

Grid: every policy on every request. Halving: the fastest third of a sample goes on to a sample three times as
large, until the rest is judged on every request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.draftfile.reader import DraftFile
from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.replay.cost import CostModel
from dflash.replay.errors import NothingDrafted, NothingToJudge, NothingToRecommend, NothingToWalk
from dflash.replay.profiled import profiled
from dflash.replay.run import replay
from dflash.replay.steered import largest_shape
from dflash.replay.tally import Collector, Judged
from dflash.replay.thinned import Thinned
from dflash.replay.tuned import Dropped, Judgement, Rung, Search, Tuned, contest, frugal, ranked, surface
from dflash.replay.work import ROUNDS, Work

ETA = 3
FEWEST_REQUESTS = 4


@dataclass(slots=True)
class _Ticker(Collector):
    """Reports one policy on one row group as one step of progress."""

    advance: Callable[[], None]

    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Step on."""
        self.advance()

    def count_law(self, length: int, rounds: F64, tokens: I64, context: F64) -> None:
        """Step on."""
        self.advance()


def tune(
    files: Sequence[DraftFile],
    policies: Sequence[Policy],
    model: CostModel,
    *,
    search: Search = Search.GRID,
    max_divergence: float = 0.0,
    dense: bool = True,
    progress: Callable[[], None] = lambda: None,
) -> Tuned:
    """Search for the fastest policy on the files of one run.

    Args:
        policies: those to try.
        model: what rounds cost.
        max_divergence: share of rounds that may accept what the target would not have chosen.
        dense: walk dense files; else their live rounds are re-judged.
        progress: called `steps(...)` times.

    Raises:
        NothingDrafted: there is no draft to judge.
        NothingToRecommend: no policy diverges as little as asked.
        NothingToWalk: no request was recorded to its end, and so none dense.
        NothingToJudge: there is no round at all.
        DflashError: as `replay`.
    """
    _require_drafts(files)
    files = profiled(files, model.step_time)
    requests = sum(file.requests for file in files)
    rungs: list[Rung] = []
    dropped: list[Dropped] = []
    left = list(policies)
    for stride in strides(search, requests)[:-1]:
        sample = [Thinned.of(file, stride) for file in files]
        judged = _judge(sample, left, model, max_divergence, dense, progress)
        order = judged.order().tolist()
        kept = _kept(len(left))
        rungs.append(Rung(judged.requests, len(left), kept))
        dropped += [judged.dropped(place) for place in order[kept:]]
        left = [left[place] for place in order[:kept]]
    judged = _judge(files, left, model, max_divergence, dense, progress)
    rungs.append(Rung(requests, len(left), len(left)))
    candidates, works = ranked(judged)
    _require_rounds(judged, files[0], dense)
    if not candidates or not candidates[0].admissible:
        raise NothingToRecommend(max_divergence)
    return Tuned(
        model,
        search,
        max_divergence,
        requests,
        tuple(rungs),
        tuple(candidates),
        tuple(dropped),
        0,
        frugal(candidates),
        contest(candidates, works),
        surface(candidates, dropped, largest_shape(files[0]), requests),
        largest_shape(files[0]),
    )


def _require_rounds(judged: Judgement, file: DraftFile, dense: bool) -> None:
    if not any(work.sums()[:, ROUNDS].any() for work in judged.works):
        raise (NothingToWalk if dense and file.header.dense else NothingToJudge)(str(file.path))


def _require_drafts(files: Sequence[DraftFile]) -> None:
    """Refuse rounds of which none has a draft; dense rows may have some."""
    head = files[0].header
    rounds, nodes = (sum(file.summary[name] for file in files) for name in ("rounds", "nodes"))
    if rounds and not nodes and not (head.dense and head.drafters):
        raise NothingDrafted(str(files[0].path))


def strides(search: Search, requests: int) -> list[int]:
    """Return which part of the requests each rung sees: every n-th; the last one sees all."""
    found = [1]
    while search is Search.HALVING and requests >= found[0] * ETA * FEWEST_REQUESTS:
        found.insert(0, found[0] * ETA)
    return found[-3:]


def steps(search: Search, requests: int, policies: int, row_groups: int) -> int:
    """Return how often a search reports progress."""
    total = 0
    for _ in strides(search, requests):
        total += policies * row_groups
        policies = _kept(policies)
    return total


def _kept(policies: int) -> int:
    return min(policies, max(FEWEST_REQUESTS, -(-policies // ETA)))


def _judge(
    files: Sequence[DraftFile],
    policies: Sequence[Policy],
    model: CostModel,
    limit: float,
    dense: bool,
    progress: Callable[[], None],
) -> Judgement:
    works = [Work.of(model, policy, largest_shape(files[0])) for policy in policies]
    collectors = [(work, _Ticker(progress)) for work in works]
    rows = replay(files, policies, dense=dense, collectors=collectors).rows
    return Judgement(policies, rows, works, limit)
