"""Threads change nothing but the time: the same figures, the same refusals, and bounded memory."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_recorder import Recorder

from dflash.bench.replay_files import Made, write
from dflash.draftfile import reader
from dflash.draftfile.errors import PageCorrupt
from dflash.draftfile.footer import open_parquet
from dflash.draftfile.metadata import group_chunks
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.draftfile.threads import Work, made, threads
from dflash.errors import DflashError
from dflash.policy.catalogue import RULES
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay import jobs
from dflash.replay.details import Wanted
from dflash.replay.run import replay

PARAMETERS = {"synthetic": "rates=0.8/0.5/0.2", "relaxed": "k=2,delta=0.5"}
KINDS = {
    "chains": {},
    "trees": {"branches": 2},
    "dense": {"dense": True},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of several row groups, by what they hold; the last has what the others leave null."""
    folder = tmp_path_factory.mktemp("threads")
    for name, kind in KINDS.items():
        recorder = Recorder("match", Proposal.INDEPENDENT, requests=14, group_rows=25, **kind)
        recorder.write(folder / f"{name}.parquet")
    write(folder / "made.parquet", Made(400, per_request=20, group_rows=100))
    found = {name: open_draft_file(folder / f"{name}.parquet") for name in (*KINDS, "made")}
    assert all(file.row_groups > 3 for file in found.values())
    return found


def outcome(monkeypatch, cores, file, texts):
    monkeypatch.setattr(jobs, "core_count", lambda: cores)
    policies = [parse_policy(text) for text in texts]
    try:
        return replay([file], policies, wanted=Wanted(calibration=True)).to_dict()
    except DflashError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", sorted(RULES))
def test_several_threads_find_to_the_bit_what_one_finds(monkeypatch, files, name):
    rule = f"{name}:{PARAMETERS[name]}" if name in PARAMETERS else name
    rounds = 0
    for file in files.values():
        one, many = (outcome(monkeypatch, cores, file, [rule, "match:length=2"]) for cores in (1, 3))
        assert one == many
        rounds += one["policies"][0]["rounds"] if isinstance(one, dict) else 0
    assert rounds > 0


@pytest.mark.parametrize("name", [*KINDS, "made"])
def test_a_control_that_goes_on_follows_the_file_beside_threads(monkeypatch, files, name):
    steered = ("match:control=window,control.scope=stream,control.after=1", "match:control=ema,control.lag=0")
    texts = [*steered, "threshold:t=0.4", "speculative:length=2,branches=1"]
    one, many = (outcome(monkeypatch, cores, files[name], texts) for cores in (1, 3))
    assert one == many
    assert one["policies"][0]["rounds"] > 0


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 100), max_size=30), most=st.integers(1, 200), count=st.integers(1, 4))
def test_results_keep_their_order_and_what_is_under_way_its_bound(sizes, most, count):
    lock, held, peaks = threading.Lock(), [0], [0]

    def make(place):
        with lock:
            held[0] += sizes[place]
            peaks.append(held[0])
        return place

    found = []
    with threads(count) as pool:
        works = (Work(size, lambda place=place: make(place)) for place, size in enumerate(sizes))
        for place in made(works, most, pool):
            held[0] -= sizes[place]
            found.append(place)
    assert found == list(range(len(sizes)))
    assert max(peaks) <= max(most, *sizes, 0)


def test_row_groups_that_are_too_large_together_are_read_one_by_one(monkeypatch, files):
    reading, most = [], []

    def watched(self, *args, **kwargs):
        reading.append(1)
        most.append(len(reading))
        try:
            return read(self, *args, **kwargs)
        finally:
            reading.pop()

    read = DraftFile.read_group
    expected = outcome(monkeypatch, 4, files["trees"], ["match"])
    monkeypatch.setattr(DraftFile, "read_group", watched)
    monkeypatch.setattr(reader, "READ_AHEAD", 1)
    monkeypatch.setattr(jobs, "UNDER_WAY", 1)
    assert outcome(monkeypatch, 4, files["trees"], ["match"]) == expected
    assert max(most) == 1


def test_the_first_damage_in_file_order_is_reported(monkeypatch, files, tmp_path):
    with open_parquet(files["trees"].path) as parquet:
        hits = [group_chunks(parquet.metadata, group, ["node_token"])[0] for group in (1, 3)]
    body = bytearray(files["trees"].path.read_bytes())
    for chunk in hits:
        body[chunk.start + chunk.size // 2] ^= 1
    path = tmp_path / "damaged.parquet"
    path.write_bytes(body)
    found = [outcome(monkeypatch, cores, open_draft_file(path), ["match"]) for cores in (1, 4)]
    assert found[0] == found[1]
    assert found[0][0] is PageCorrupt
    assert "row group 1" in found[0][1]
