"""The order in which ends of text, stop strings and limits cut a round, from vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash.engine.lane import Emission, Lane, Truncation
from dflash.engine.request import Request
from dflash.target.sampling import Sampling

PATH = Path(__file__).parents[1] / "vectors" / "emissions.json"
VECTORS = json.loads(PATH.read_text(encoding="utf-8"))["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_round_keeps_what_plain_decoding_would(tiny, vector):
    def tokens(text):
        return tiny.tokenizer.encode(text, add_special_tokens=False)

    before, drafted = tokens(vector.get("before", "")), tokens(vector["tokens"])
    assert len(drafted) == len(vector["tokens"])
    limit = vector.get("limit", 100)
    request = Request("r", [1], "", Sampling(), 0, limit, tuple(vector.get("stop", ())))
    eos = frozenset(tokens(vector.get("eos", "")))
    lane, plain = (Lane.start(0, request, eos, tiny.tokenizer, None) for _ in range(2))
    if before:
        lane.emit(before)
    assert lane.emit(drafted) == Emission(vector["kept"], Truncation(vector["by"]))
    one_by_one = 0
    for token in [*before, *drafted]:
        if not plain.done:
            plain.emit([token])
            one_by_one += 1
    assert one_by_one == len(before) + vector["kept"]
    assert plain.finish is lane.finish
