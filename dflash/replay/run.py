"""Replay of one run: each policy by the most exact way that the recording allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from dflash.draftfile.reader import DraftFile
from dflash.policy.context import RuleContext, context_from_header
from dflash.policy.registry import Policy
from dflash.policy.rule import Exactness
from dflash.policy.shape import Shape
from dflash.replay.check import Check
from dflash.replay.details import Details, Wanted
from dflash.replay.errors import LawDecidesNothing, NotDense, NotWalkable, ShapeBeyondRecording
from dflash.replay.jobs import Pass, count_over
from dflash.replay.profiled import profiled
from dflash.replay.rejudge import Rejudging
from dflash.replay.rescored import require_own_contexts, said_of_contexts
from dflash.replay.result import PolicyRow, Replay, Source, check_report
from dflash.replay.state_check import StateCheck
from dflash.replay.steered import largest_shape
from dflash.replay.tally import Collector
from dflash.replay.verdicts import VerdictWriter
from dflash.replay.walks import LawWalking, Walking

_Collectors = Sequence[Sequence[Collector]]


class Way(StrEnum):
    """How a policy is replayed."""

    REJUDGE = "re-judge"
    WALK = "walk"
    LAW = "law"


def recorded_policy(file: DraftFile) -> Policy:
    """Return the policy that decided the live rounds, with the shape that they were drafted in."""
    policy = Policy.from_dict(file.header.policy)
    return replace(policy, shape=policy.shape.filled(largest_shape(file)))


def way_of(policy: Policy, file: DraftFile, recorded: Policy) -> Way:
    """Return the most exact way to replay a policy on a dense file.

    A path-exact or lossy policy walks a trunk of the target's choices; a law-exact one walks any trunk that
    was recorded losslessly; what is left is re-judged, as is a cut that is no live draft of its shape.
    """
    if not _drafts_live(policy, file):
        return Way.REJUDGE
    context = context_from_header(file.header.raw)
    exactness = policy.exactness_in(context, _branches(policy, file))
    if exactness is Exactness.LAW:
        return Way.LAW if recorded.is_lossless(context) else Way.REJUDGE
    follows = exactness is Exactness.PATH or not policy.is_lossless(context)
    return Way.WALK if follows and _emits_choices(recorded, context) else Way.REJUDGE


def replay(
    files: Sequence[DraftFile],
    policies: Sequence[Policy] = (),
    *,
    check: bool = False,
    dense: bool = True,
    verdicts: VerdictWriter | None = None,
    progress: Callable[[], None] = lambda: None,
    collectors: Sequence[Sequence[Collector]] = (),
    wanted: Wanted = Wanted(),
    jobs: int = 1,
) -> Replay:
    """Replay a run under several policies, every file read once.

    Args:
        files: of one run, in order.
        policies: none means the recorded one.
        check: also hold every recorded decision against the recorded policy.
        dense: walk the dense rows of dense files; else every policy is re-judged on the live rounds.
        verdicts: takes every decision.
        progress: called after each row group.
        collectors: of each policy, in the order of `policies`; they count along.
        wanted: what to tell beside acceptance.
        jobs: processes that share the files; a check follows them in order, in this process.

    Raises:
        ShapeBeyondRecording: a policy asks for more than was drafted.
        ContextsOfAnother: rescored drafts are to be walked or checked.
        LawDecidesNothing: verdicts are asked of a law-exact walk.
    """
    if wanted.cost is not None:
        files = profiled(files, wanted.cost.step_time)
    first = files[0]
    recorded = recorded_policy(first)
    asked = tuple(policies) or (recorded,)
    walkable = dense and first.header.dense
    require_own_contexts(first, walkable, check)
    checker = _checker(recorded, first) if check else None
    details = Details.of(wanted, asked, largest_shape(first) if walkable else recorded.shape)
    ways = _ways(asked, first, recorded, walkable)
    if verdicts is not None:
        _require_decisions(asked, ways)
    going = Pass(verdicts, progress, jobs)
    along = None if jobs > 1 else checker
    rows = _rows(files, asked, ways, recorded, along, details.collectors(collectors), going)
    if checker is not None:
        if along is None:
            count_over(files, [Rejudging.of((), (), recorded, first, checker, None)], 1, lambda: None)
        checker.close()
        for file in files if first.header.dense else ():
            checker.add_dense(file, recorded)
    return Replay(
        run_id=first.run_id,
        sources=tuple(Source(str(file.path), file.part, file.content_digest) for file in files),
        recorded=recorded,
        requests=sum(file.requests for file in files),
        rows=said_of_contexts(first, details.filled(rows)),
        check=None if checker is None else check_report(checker),
        cost=wanted.cost,
    )


def _rows(
    files: Sequence[DraftFile],
    asked: Sequence[Policy],
    ways: Sequence[Way],
    recorded: Policy,
    checker: Check | None,
    collectors: _Collectors,
    going: Pass,
) -> list[PolicyRow]:
    """Count every policy in its way, all in one reading of the files."""
    first = files[0]
    strict = _emits_choices(recorded, context_from_header(first.header.raw))
    chosen = {way: [index for index, found in enumerate(ways) if found is way] for way in Way}
    with going.sink(files) as verdicts:
        begin: dict[Way, Callable[[list[Policy], _Collectors], Rejudging | Walking | LawWalking]] = {
            Way.REJUDGE: lambda some, by: Rejudging.of(some, by, recorded, first, checker, verdicts),
            Way.WALK: lambda some, by: Walking.of(some, by, strict, first, verdicts),
            Way.LAW: LawWalking.of,
        }
        counters = {
            way: begin[way]([asked[index] for index in places], [collectors[index] for index in places])
            for way, places in chosen.items()
            if places or (checker is not None and way is Way.REJUDGE)
        }
        count_over(files, list(counters.values()), going.jobs, going.progress)
    rows = {
        index: row
        for way, counter in counters.items()
        for index, row in zip(chosen[way], counter.rows(), strict=True)
    }
    return [
        replace(
            rows[index],
            recorded=same(policy, recorded),
            walk=_walk_of(rows[index].walk, policy, first.header.lanes),
        )
        for index, policy in enumerate(asked)
    ]


def _walk_of(walk: str, policy: Policy, lanes: int) -> str:
    """What a walk is, now that one knows in how many lanes requests ran beside each other."""
    return "simulation" if walk == str(Exactness.PATH) and policy.control.simulated(lanes) else walk


def _require_decisions(asked: Sequence[Policy], ways: Sequence[Way]) -> None:
    """Refuse to write the decisions of a walk that knows their law alone."""
    for policy, way in zip(asked, ways, strict=True):
        if way is Way.LAW:
            raise LawDecidesNothing(str(policy))


def require_walks(files: Sequence[DraftFile], policies: Sequence[Policy] = ()) -> None:
    """Refuse a run, or policies on it, that can only be re-judged.

    Raises:
        NotDense: the run has no dense rows.
        NotWalkable: a policy leads away from what was recorded.
    """
    first = files[0]
    if not first.header.dense:
        raise NotDense(str(first.path))
    recorded = recorded_policy(first)
    for policy in policies or (recorded,):
        if way_of(policy, first, recorded) is Way.REJUDGE:
            raise NotWalkable(str(policy), str(recorded))


def _ways(asked: Sequence[Policy], first: DraftFile, recorded: Policy, walkable: bool) -> list[Way]:
    ways = [way_of(policy, first, recorded) if walkable else Way.REJUDGE for policy in asked]
    for policy, way in zip(asked, ways, strict=True):
        require_within(policy, recorded.shape if way is Way.REJUDGE else largest_shape(first))
    return ways


def _checker(recorded: Policy, file: DraftFile) -> Check:
    return Check(recorded, StateCheck(recorded, file) if recorded.control.adaptive else None)


def same(policy: Policy, recorded: Policy) -> bool:
    """Return whether a policy is the recorded one, with the bounds that it leaves open."""
    shaped = policy.shape.filled(recorded.shape) == recorded.shape
    return shaped and policy.rule == recorded.rule and policy.control == recorded.control


def _branches(policy: Policy, file: DraftFile) -> bool:
    return policy.shape.filled(largest_shape(file)).branches != 1


def _drafts_live(policy: Policy, file: DraftFile) -> bool:
    """Return whether each drafter, asked for the policy's shape, would draft the recorded tree, cut."""
    largest = largest_shape(file)
    asked = policy.shape.filled(largest)
    cuts = asked.cuts(largest) | set(policy.control.varies)
    exact = [drafter.get("cuts") for drafter in file.header.drafters]
    return all(known is None or cuts <= set(known) for known in exact)


def _emits_choices(recorded: Policy, context: RuleContext) -> bool:
    return recorded.rule.exactness_in(context, trees=False) is Exactness.PATH


def require_within(policy: Policy, recorded: Shape) -> None:
    """Refuse a policy that asks for more than was drafted.

    Raises:
        ShapeBeyondRecording: it does.
    """
    for bound in ("length", "branches"):
        asked, drafted = getattr(policy.shape, bound), getattr(recorded, bound)
        if asked is not None and asked > drafted:
            raise ShapeBeyondRecording(str(policy), bound, asked, drafted)
