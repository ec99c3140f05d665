"""What can be wrong with a policy or with the columns that it needs: one class per situation."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from dflash.errors import DflashError


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else "It takes none."


class PolicySyntax(DflashError):
    """The short form of a policy cannot be split into a name and `key=value` pairs."""

    def __init__(self, text: str, found: str) -> None:
        super().__init__(f"Expected a policy as NAME:key=value,key=value, found {found!r} in {text!r}.")


class PolicyIsFile(DflashError):
    """A file that holds no policy is given as one."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"Expected a policy as NAME:key=value,key=value or a .toml file, found the file {text!r}. "
            "Draft files are given without --policy."
        )


class UnknownSection(DflashError):
    """A policy file has a section or a key outside of the three sections."""

    def __init__(self, path: str, name: str, known: Iterable[str], *, key: bool) -> None:
        found = f"the key {name!r} outside of them" if key else f"a section [{name}]"
        advice = "Write it under one of them, name under [rule]." if key else _nearest(name, known)
        super().__init__(f"{path}: a policy has [rule], [shape] and [control], found {found}. {advice}")


class UnknownRule(DflashError):
    """No acceptance rule has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"No acceptance rule is called {name!r}. {_nearest(name, known)}")


class UnknownControl(DflashError):
    """No control has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"No control is called {name!r}. {_nearest(name, known)}")


class UnknownParameter(DflashError):
    """The rule, the shape and the control do not take this parameter."""

    def __init__(self, rule: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"Policy {rule!r} takes no parameter {name!r}. {_nearest(name, known)}")


class MisplacedParameter(UnknownParameter):
    """A policy file has a parameter of the shape under the rule, or the other way round."""

    def __init__(self, rule: str, name: str, found: str, home: str) -> None:
        DflashError.__init__(
            self, f"Policy {rule!r} takes {name!r} under [{home}], found it under [{found}]. Move it there."
        )


class BadParameter(DflashError):
    """A parameter has a value outside of its range, or none that can be read."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"Parameter {name!r} must be {expected}, found {value!r}.")


class RepeatedParameter(DflashError):
    """One parameter is given twice."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"Parameter {name!r} is given twice in {text!r}; give it once.")


class MissingParameter(DflashError):
    """A rule has a parameter without a default, and it is not given."""

    def __init__(self, rule: str, name: str, expected: str) -> None:
        super().__init__(f"Policy {rule!r} needs {name}: {expected}. Write {rule}:{name}=...")


class ParameterConflict(DflashError):
    """Two parameters are given of which a rule takes one or the other."""

    def __init__(self, rule: str, one: str, other: str) -> None:
        super().__init__(f"Policy {rule!r} takes {one} or {other}, found both. Leave one of them out.")


class BadPolicyFile(DflashError):
    """A policy file cannot be read, or holds more than a policy."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            f"{path}: expected a policy as TOML with [rule], [shape] and [control], but {found}. "
            "`dflash policies` lists what each may hold."
        )


class BadEntryPoint(DflashError):
    """Another distribution offers a rule that cannot be used."""

    def __init__(self, distribution: str, name: str, found: str) -> None:
        super().__init__(
            f"Expected rule {name!r} of {distribution} (entry point group dflash.policies) to be a class "
            f"derived from dflash.policy.rule.Rule with that name, but {found}. Repair or uninstall it."
        )


class MissingColumns(DflashError):
    """A rule needs columns that these rounds do not have."""

    def __init__(self, missing: Iterable[str]) -> None:
        names = ", ".join(sorted(missing))
        super().__init__(f"The rounds lack what the rule needs: {names}. Record again with these columns.")


class NullColumn(DflashError):
    """A column is there, but without the values that a rule needs."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"Column {column!r} holds no value where the rule needs one: {why}.")


class MixedProposals(DflashError):
    """A rule needs one law of the drafts, and a union's drafters follow several."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"Rule {rule!r} needs drafts of one kind, and the header's drafters differ in theirs. "
            "Use `match`, or record with drafters of the same proposal kind."
        )


class ChainsOnly(DflashError):
    """A rule judges chains, and a round branches."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"Rule {rule!r} judges chains, and a tree branches. Cut it with branches=1, or record chains."
        )


class IndependentOnly(DflashError):
    """A rule needs drafts whose noise no other round has looked at."""

    def __init__(self, rule: str, proposal: str) -> None:
        super().__init__(
            f"Rule {rule!r} needs independent drafts, and these are {proposal}. "
            "Record with --proposal independent."
        )


class SampledOnly(DflashError):
    """A rule needs drafts that were drawn from a law."""

    def __init__(self, rule: str, proposal: str) -> None:
        super().__init__(
            f"Rule {rule!r} weighs p against q, and these drafts are {proposal}: they have no q. "
            "Record with --proposal independent, or judge at temperature 0."
        )


class TooFewTopLogits(DflashError):
    """A rule asks for more of the target's top logits than were stored."""

    def __init__(self, rule: str, asked: int, stored: int) -> None:
        super().__init__(
            f"Rule {rule!r} looks at the target's top {asked}, and {stored} are stored a slot. "
            f"Ask for at most {stored}, or record with --store-topk {asked}."
        )


class UndecidedMixture(DflashError):
    """The stored top logits of target and drafter do not show which token a mixture likes best."""

    def __init__(self, rule: str, rounds: int) -> None:
        super().__init__(
            f"Rule {rule!r} needs the likeliest token of a mixture of p and q, which the stored top logits "
            f"leave open in {rounds} rounds. Record with a larger --store-topk."
        )


class TooFewRates(DflashError):
    """An acceptance rate is asked for a depth that has none."""

    def __init__(self, rule: str, rates: int, depth: int) -> None:
        super().__init__(
            f"Rule {rule!r} has rates for {rates} positions, and a draft is {depth} long. "
            f"Give {depth} rates, or cut with length={rates}."
        )


class DraftScoreMissing(DflashError):
    """A cut needs the drafter's own estimate of its tokens, and the file holds none."""

    def __init__(self, cut: str) -> None:
        super().__init__(
            f"Cut {cut!r} needs the drafter's confidence in every node: node_confidence, or the draft top-k "
            "with the node's token in it. Some nodes have neither; cut by length, branches or "
            "first_positions."
        )


class IncompleteDraftLaw(DflashError):
    """A rule needs all of q, of which the file holds a part."""

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"Rule {rule!r} on trees of sampled drafts needs all of q, and the header says "
            "q_complete: false. Record with a --draft-top-k of at most the stored draft top-k."
        )


class BadStepTime(DflashError):
    """A step-time profile cannot be read."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(
            f"Expected {expected} in the step-time profile, found {found!r}. "
            "Fit it anew from a recording, or see schemas/README.md."
        )


class StepTimeMissing(DflashError):
    """A control predicts step times, and nothing says how long a step takes."""

    def __init__(self, control: str) -> None:
        super().__init__(
            f"Control {control!r} reads a step-time profile, and none is given or recorded. "
            "Record or replay with --cost PROFILE.json."
        )


class ThresholdMissing(DflashError):
    """A control moves the rule's threshold, and the rule has none."""

    def __init__(self, control: str) -> None:
        super().__init__(
            f"Control {control!r} with dt above 0 moves a rule's threshold `t`, and this rule has none. "
            "Use a rule that has one, or leave dt out."
        )
