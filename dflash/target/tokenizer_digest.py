"""Which tokens a tokenizer makes of a text, as one digest; free of torch, so that readers can ask for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dflash.draftfile.canonical import digest_of


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of the canonical tokenizer: vocabulary, merges, special tokens, normaliser, pre-tokeniser.

    Args:
        tokenizer: Of transformers, or a bare one of tokenizers.
    """
    backend = tokenizer if hasattr(tokenizer, "to_str") else getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        special = sorted(map(str, tokenizer.all_special_tokens))
        facts = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab(), "special": special}
        return digest_of(facts)
    stored = json.loads(backend.to_str())
    model = stored["model"]
    return digest_of(
        {
            "type": model["type"],
            "vocabulary": model["vocab"],
            "merges": [_pair(merge) for merge in model.get("merges") or ()],
            "special": [_added(token) for token in sorted(stored["added_tokens"], key=_token_id)],
            "normaliser": _part(stored["normalizer"]),
            "pre_tokeniser": _part(stored["pre_tokenizer"]),
        }
    )


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _token_id(token: Mapping[str, Any]) -> int:
    return int(token["id"])


def _added(token: Mapping[str, Any]) -> dict[str, Any]:
    return {key: token[key] for key in ("id", "content", "special", "lstrip", "rstrip", "normalized")}


def _part(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    # some versions write "nothing" as an empty sequence, and offsets change no token
    if part is None or part == {"type": "Sequence", "normalizers": []}:
        return None
    nested = {key: [_part(item) for item in value] for key, value in part.items() if isinstance(value, list)}
    return {key: value for key, value in (part | nested).items() if key != "trim_offsets"}
