"""The temperatures at which a law can be computed and stored."""

from __future__ import annotations

_LOWEST, _HIGHEST = 1e-4, 100.0
TEMPERATURES = f"0, or from {_LOWEST:g} to {_HIGHEST:g}"


def is_temperature(value: float) -> bool:
    """Whether logits over `value` fit the columns; 0 is greedy, and NaN is no temperature."""
    return value == 0 or _LOWEST <= value <= _HIGHEST
