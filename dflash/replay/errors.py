"""What can be asked of a recording that it cannot answer."""

from __future__ import annotations

from dflash.errors import DflashError


class ShapeBeyondRecording(DflashError):
    """A policy asks for more of the tree than was recorded."""

    def __init__(self, policy: str, bound: str, asked: int, recorded: int) -> None:
        super().__init__(
            f"Policy {policy!r} asks for {bound} {asked}, and the live rounds were drafted with {bound} "
            f"{recorded}. Ask for at most that, or record with --{bound} {asked}."
        )


class DenseIncomplete(DflashError):
    """A request lacks dense rows, so that it cannot be walked."""

    def __init__(self, request_id: str, expected: int, found: int) -> None:
        super().__init__(
            f"Request {request_id!r} needs {expected} dense rows, one a committed token but the last and in "
            f"order, found {found}. Record it again with --dense, or replay with --rejudge."
        )


class WalkDiverged(DflashError):
    """A committed token is not the target's choice, and no near-tie explains it."""

    def __init__(self, request_id: str, position: int, committed: int, choice: int, gap: float) -> None:
        super().__init__(
            f"Request {request_id!r}, position {position}: the trunk holds token {committed}, the dense row "
            f"chose {choice} with a margin of {gap:g}, which is no near-tie. The dense rows are not of this "
            "trunk; replay with --rejudge."
        )


class TrunkLawMissing(DflashError):
    """A law-exact walk needs q along the trunk, which these dense rows do not hold."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"A walk under {rule!r} needs trunk_logp and trunk_logq in every dense row, and some are null. "
            "Record with --dense and sampled drafts, or replay with --rejudge."
        )


class RequestUnknown(DflashError):
    """The prefill row that tells a request's key and sampling is missing or incomplete."""

    def __init__(self, request_id: str, what: str) -> None:
        super().__init__(
            f"Request {request_id!r} has no {what} in `request_info` of its prefill row, so its rounds "
            "cannot be judged. Record it again."
        )


class NothingDrafted(DflashError):
    """A question about drafts is asked of a recording that has none."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: expected drafted nodes, found none in any live round. Record with a --drafter."
        )


class NoTimings(DflashError):
    """A cost model is to be fitted to a recording without times."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: expected draft_us, round_us, step, batch_size and context_length in its live rounds, "
            "found none with all of them. Give a profile with --cost, or a recording that has times."
        )


class CostUnreadable(DflashError):
    """A file is no step-time profile."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: expected a step-time profile as JSON, {reason}")


class CostMissing(CostUnreadable):
    """There is no such file."""

    def __init__(self, path: str) -> None:
        Exception.__init__(self, f"{path} does not exist; expected a step-time profile as JSON.")


class BadSweep(DflashError):
    """A range in a sweep cannot be read."""

    def __init__(self, text: str, sweep: str) -> None:
        super().__init__(
            f"Expected a range low..high or low..high..step with low <= high, found {text!r} in {sweep!r}."
        )


class SweepTooLarge(DflashError):
    """A sweep stands for more policies than may be tried."""

    def __init__(self, count: int, most: int) -> None:
        super().__init__(f"The sweep stands for {count:,} policies; ask for at most {most:,}.")


class NothingToRecommend(DflashError):
    """No policy of a sweep may be recommended."""

    def __init__(self, limit: float) -> None:
        super().__init__(
            f"No policy of the sweep diverges in at most {limit:g} of its rounds. "
            "Allow more with --max-divergence, or sweep other rules."
        )


class NothingToJudge(DflashError):
    """A search has no round on which a policy could be judged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: expected live rounds, found none: every answer ended at its first token. Record longer "
            "answers."
        )


class SpeedUpUnknown(DflashError):
    """A speed-up is to be drawn, and one-token decoding was never timed."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} would show speed-ups, and plain decoding was never timed in this recording or profile. "
            "Give --cost a profile of `dflash bench step`, or this recording and one with --drafter none."
        )


class BestUnknown(DflashError):
    """The best policy is to be written, and the times do not tell which it is."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} would hold the best policy, and which is the fastest is not known: rounds as small as "
            "some of these policies ask for were never timed. Give --cost a profile of `dflash bench step`."
        )


class NothingToWalk(DflashError):
    """A dense recording holds no finished request, whose dense rows a walk needs."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: expected dense rows, found none: its requests were cut short. Use --rejudge, or record "
            "whole answers."
        )


class SeveralCosts(DflashError):
    """More than one cost model is given."""

    def __init__(self, places: list[str]) -> None:
        super().__init__(
            f"Expected one step-time profile, or draft files to fit one to, found {', '.join(places)}."
        )


class ContextsOfAnother(DflashError):
    """Rescored drafts are asked for what only a run under their target could tell."""

    def __init__(self, path: str, contexts: str, question: str, advice: str) -> None:
        super().__init__(
            f"{path} holds drafts that another target scored afterwards, on the contexts of a run under "
            f"{contexts!r}: it can be re-judged, not {question}. Replay it with {advice}, or record a run of "
            "its own."
        )


class LawDecidesNothing(DflashError):
    """Decisions are to be written of a walk that knows their law alone."""

    def __init__(self, policy: str) -> None:
        super().__init__(
            f"A walk under {policy!r} is law-exact: it knows how likely each length is, and decides no "
            "round, so that there is nothing to write with -o. Add --rejudge, or leave this policy out."
        )


class NoExpectation(DflashError):
    """The coins of a rule cannot be integrated out."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"Rule {rule!r} tosses coins in a way of its own, which --expect cannot integrate out. "
            "Expected `match`, `speculative`, `block`, a preset or a rule without coins; replay it without "
            "--expect."
        )


class NoIntegratedDrafts(DflashError):
    """The drafts of a rule cannot be integrated out slot by slot."""

    def __init__(self, rule: str, branches: bool = False) -> None:
        why = "a round branches" if branches else "it judges more than one draft at a time"
        cut = "cut trees with branches=1, or " if branches else ""
        super().__init__(
            f"--expect drafts cannot integrate over the drafts of {rule!r}: {why}. Expected `speculative` or "
            f"`match` on chains; {cut}use --expect, which keeps the recorded drafts."
        )


class DraftLawIncomplete(DflashError):
    """An expectation needs all of q, of which the file holds a part."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"The expectation of {rule!r} needs all of q, and the header says q_complete: false. "
            "Record with a --draft-top-k of at most --store-topk, so that q is stored whole."
        )


class StaticOnly(DflashError):
    """An expectation is asked for a policy that changes with what was accepted."""

    def __init__(self, policy: str) -> None:
        super().__init__(
            f"Policy {policy!r} adapts to what was accepted, so its rounds have no expectation one by one. "
            "Use control=static, or replay it without --expect."
        )


class StateMissing(DflashError):
    """A live round under an adaptive control does not say in what state its control was."""

    def __init__(self, request_id: str, round_: int) -> None:
        super().__init__(
            f"Request {request_id!r}, round {round_}: expected a control_state, since the recorded control "
            "is adaptive, found none. Record again."
        )


class NotDense(DflashError):
    """A walk is asked for, and only live rounds were recorded."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: a walk needs a draft at every committed token, and only live rounds were recorded. "
            "Record with --dense, or leave out --walk to re-judge every round at its own anchor."
        )


class NotWalkable(DflashError):
    """A walk is asked for under a policy that the dense rows cannot follow."""

    def __init__(self, policy: str, recorded: str) -> None:
        super().__init__(
            f"Policy {policy!r} cannot be walked on a run recorded under {recorded!r}: it emits tokens, or "
            "asks for drafts, that the dense rows do not hold. Record dense under a rule that emits the "
            "target's choices, or under this policy's own shape; leave out --walk to re-judge."
        )


class TemperatureUnknown(DflashError):
    """What a rule reads was stored for the recorded temperature alone."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(
            f"Rule {rule!r} cannot be judged at another temperature: {what} is stored for the recorded one. "
            "Record at the temperature that you ask about."
        )


class TooLittleMass(DflashError):
    """The stored top logits leave too much of p unknown at another temperature."""

    def __init__(self, temperature: float, unknown: float, most: float, topk: int) -> None:
        super().__init__(
            f"At temperature {temperature:g} the {topk} stored top logits of a slot leave up to "
            f"{unknown:.2%} of p open; expected at most {most:.2%}. Record with a larger --store-topk, or at "
            "that temperature."
        )
