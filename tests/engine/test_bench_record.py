"""`dflash bench record`: both places of a recorder against none, in one document."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest

from dflash.cli.main import run


@pytest.mark.parametrize("drafter", ["ngram", "none"])
def test_it_measures_both_places_and_prints_its_schema(tiny_folder, capfd, drafter):
    words = ["bench", "record", "--target", str(tiny_folder), "--drafter", drafter, "--json"]
    assert run([*words, "--pairs", "2", "--max-new-tokens", "4"]) == 0
    document = json.loads(capfd.readouterr().out)
    schema = json.loads((resources.files("dflash.schemas") / "bench_record_v1.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert document["tokens"] == 8
    assert all(min(pair["on_s"], pair["process_s"], pair["off_s"]) > 0 for pair in document["pairs"])
