"""How a policy's shape changes over time; so far it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Static:
    """The shape and the rule stay as they are."""

    name: ClassVar[str] = "static"
    summary: ClassVar[str] = "the shape and the rule stay as they are"
