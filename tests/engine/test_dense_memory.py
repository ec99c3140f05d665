"""Dense recording of a long answer holds one trunk, one chunk of logits and the rows, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from dataclasses import replace
from pathlib import Path
from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.policy.registry import parse_policy
from dflash.target.load import load_target
from dflash.target.sampling import Sampling

target = replace(load_target(), eos=frozenset())
settings = RecordSettings(
    output=Path("long.parquet"),
    drafter="suffix",
    policy=parse_policy("match"),
    defaults=Defaults(Sampling(), seed=0, max_new_tokens=4000),
    length=8,
    branches=1,
    dense=True,
)
session = Session(target, settings)
entries = with_ids([text_prompt("Count from one to four thousand in words.")])
recording = session.record(session.conversations(entries, check=True))
print(recording.totals.emitted, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.evidence
@pytest.mark.network
def test_four_thousand_tokens_dense_at_length_eight_stay_under_three_gigabytes(in_folder):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    tokens, kilobytes = map(int, done.stdout.split())
    print(f"{tokens} tokens, peak {kilobytes / 1e6:.2f} GB")
    assert tokens == 4000
    assert kilobytes < 3e6
