"""Drafts of a drafter without any engine around it, as paths."""

from __future__ import annotations

from dflash.drafters.base import Anchor, DraftShape


def proposal(drafter, trunk, length, branches, key=(1, 2), lane=0):
    """The draft from the end of a trunk."""
    anchor = Anchor(lane, len(trunk) - 1, key, trunk)
    (found,) = drafter.propose([anchor], DraftShape(length, branches))
    return found


def paths(found):
    """Tokens of each root-to-leaf path, in order of the leaves."""
    lines = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        assert parent < len(lines)
        lines.append([*(lines[parent] if parent >= 0 else []), token])
    return [line for node, line in enumerate(lines) if node not in found.parents]


def cut(branches, length, count):
    """The first `count` paths down to `length`."""
    return [path[:length] for path in branches[:count]]
