"""A request: one prompt, ready to decode, with all that is known about it at the start."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dflash.policy.noise import request_key, rng_key_hex
from dflash.target.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it.

    `ordinal` counts identical prompts before this one in the whole prompt list; with the seed and the prompt
    it determines the noise key. `order` is the place of its prompt in the list.
    """

    request_id: str
    prompt_tokens: list[int]
    prompt_text: str
    sampling: Sampling
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    ordinal: int = 0
    order: int = 0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        """The request's Philox key."""
        return request_key(self.seed, self.prompt_tokens, self.ordinal)

    def info_json(self) -> str:
        """The `request_info` column: canonical JSON of what is known at the start."""
        known = {
            "sampling": {
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
            },
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "ordinal": self.ordinal,
            "rng_key": rng_key_hex(self.key),
        }
        return json.dumps(known | self.info, sort_keys=True, ensure_ascii=False, allow_nan=False)
