"""The likely cause of what was found, in words, the weightiest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.diff.acceptance import Shift
from dflash.diff.identity import Difference
from dflash.diff.shapes import cutting, shape_words

# all that quantising a drafter changes of its entry
_QUANTISED = {"quantisation", "weights_digest"}


@dataclass(frozen=True, slots=True)
class Findings:
    """What the sections say, as far as causes can be told from it.

    Attributes:
        drafts: drafts differ in the same context, or what the drafter says of them.
        cut: drafts differ, and only in how far the headers let them go.
        redrawn: drafts differ, and the shapes do in a way that changes what this drafter proposes.
        target: what the target says differs in the same context, beyond the tolerance, as log p.
        shifted: raw logits differ and log p does not.
        tokens: outputs part.
        near_ties: every parting is a near-tie.
        infos: keys of `request_info` that differ.
        prompts: aligned prompts that are not the same tokens.
        decisions: decisions differ in the same context.
        tau: tau on both sides; None where no rows were compared.
    """

    drafts: bool = False
    cut: bool = False
    redrawn: bool = False
    target: bool = False
    shifted: bool = False
    tokens: bool = False
    near_ties: bool = False
    infos: tuple[str, ...] = ()
    prompts: bool = False
    decisions: bool = False
    tau: Shift | None = None

    @property
    def anything(self) -> bool:
        return self.drafts or self.target or self.shifted or self.tokens or self.prompts or self.decisions


def causes(differences: Sequence[Difference], findings: Findings) -> list[str]:
    """Explain what was found by what the headers do not share."""
    found = list(_models(differences, findings))
    found += _settings(differences, findings)
    if findings.anything and not found:
        found.append(
            "Nothing in the headers differs that could explain it: suspect kernels that do not repeat "
            "their bits, another batch, or a change that the header does not know of."
        )
    if findings.shifted:
        found.append("Raw logits moved and log p did not, as when all logits of a slot are shifted alike.")
    if findings.tokens and findings.near_ties:
        found.append("Every output parts at a near-tie: rounding can do that.")
    return found


def _models(differences: Sequence[Difference], findings: Findings) -> Iterator[str]:
    keys = {difference.key: difference for difference in differences}
    if "tokenizer.digest" in keys:
        yield "The tokenizers differ: a token id means two things, so everything after this is noise."
    if "target.quantisation" in keys:
        a, b = (_method(value) for value in keys["target.quantisation"][1:])
        yield f"The target's quantisation differs: {a} in A, {b} in B."
    if "target.weights_digest" in keys and "target.quantisation" not in keys:
        yield "The target's weights differ: another version of the model, or another model."
    for key, what in (("target.config_digest", "configuration"), ("target.dtype", "precision")):
        if key in keys:
            yield f"The target's {what} differs{_values(keys[key], key == 'target.dtype')}."
    if "tokenizer.template_digest" in keys:
        yield "The chat templates differ, so that equal texts became other prompts."
    elif findings.prompts and "tokenizer.digest" not in keys:
        yield "Equal texts became other prompt tokens: another system prompt, or no template around them."
    drafters = [difference for difference in differences if difference.key.startswith("drafters")]
    same_target = not any(difference.key.startswith("target") for difference in differences)
    quantised = _quantised(drafters)
    if quantised and same_target:
        yield f"{quantised}{_price(findings.tau)}"
    elif drafters and same_target:
        yield (
            f"The drafter changed ({_drafter_change(drafters)}) and the target did not: "
            "another drafter, or another version of it."
        )
    elif drafters:
        yield "The drafter changed too."
    elif same_target and findings.drafts and not (findings.target or findings.cut or findings.redrawn):
        yield (
            "Drafts differ although the target says the same and no drafter differs in the header: "
            "a bug of the drafter, or a version that the header does not know of."
        )


def _settings(differences: Sequence[Difference], findings: Findings) -> Iterator[str]:
    tops = _tops(differences)
    if findings.cut or findings.redrawn:
        yield _shape(differences, findings.cut)
    noise: list[str] = [name for name in ("sampling", "seed", "rng") if name in tops]
    noise += [key for key in findings.infos if key.startswith(("sampling", "seed", "rng_key"))]
    if noise:
        names = ", ".join(dict.fromkeys(noise))
        yield f"Sampling differs ({names}): other texts are to be expected, and log p is of another law."
    yield from _asked(differences, findings)
    engine = [difference for difference in differences if difference.key.startswith("engine.")]
    if engine and findings.anything:
        changed = "; ".join(f"{item.key[7:]} {item.a} in A, {item.b} in B" for item in engine[:4])
        yield f"The engine differs: {changed}."


def _shape(differences: Sequence[Difference], cut: bool) -> str:
    """How shapes that differ explain drafts that do."""
    words = shape_words(differences)
    shapes = f"The shapes differ ({words})" if words else "The policies let drafts go less far at times"
    if cut:
        return f"{shapes}, and that alone explains the drafts: as far as both go, they are equal."
    return f"{shapes}, and the drafter does not promise that a cut draft equals a smaller one."


def _asked(differences: Sequence[Difference], findings: Findings) -> Iterator[str]:
    # dense rows have no partner without others, so they change no draft
    explained = {"shape", "dense"} if findings.cut else {"shape"} if findings.redrawn else set()
    rest = [item for item in differences if not (explained and cutting(item))]
    asked = [name for name in ("policy", "shape", "dense", "lanes") if name in _tops(rest) - explained]
    if asked:
        yield f"The runs were asked for different things ({', '.join(asked)})."


def _tops(differences: Sequence[Difference]) -> set[str]:
    return {difference.key.partition(".")[0].partition("[")[0] for difference in differences}


def _quantised(differences: Sequence[Difference]) -> str:
    """In words, if drafters differ by their quantisation alone, else empty."""
    keys = {difference.key.rpartition("].")[2]: difference for difference in differences}
    if "quantisation" not in keys or not keys.keys() <= _QUANTISED:
        return ""
    a, b = (_method(value) for value in keys["quantisation"][1:])
    return f"The drafter's quantisation differs: {a} in A, {b} in B, and the target is the same."


def _price(tau: Shift | None) -> str:
    """What a change does to tau, with its interval."""
    if tau is None or tau.a is None or tau.b is None or tau.difference is None:
        return ""
    interval = tau.difference_interval
    sure = "no interval: fewer than two requests"
    if interval is not None:
        sure = f"95 % interval {interval.low:+.3f} to {interval.high:+.3f}, requests paired"
    return f" What that does to acceptance: tau {tau.a:.3f} to {tau.b:.3f}, {tau.difference:+.3f} ({sure})."


def _drafter_change(differences: Sequence[Difference]) -> str:
    """Names, if these differ, else what of them does."""
    keys = [difference.key.rpartition("].")[2] for difference in differences]
    if "name" in keys:
        names = differences[keys.index("name")]
        return f"{names.a or 'none'} in A, {names.b or 'none'} in B"
    return ", ".join(dict.fromkeys(keys)) if all(keys) else "their number"


def _method(value: Any) -> str:
    if not isinstance(value, dict):
        return "none"
    bits = f" with {value['bits']} bits" if "bits" in value else ""
    return f"{value['method']}{bits}"


def _values(difference: Difference, shown: bool) -> str:
    return f": {difference.a} in A, {difference.b} in B" if shown else ""
