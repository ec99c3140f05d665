"""Hidden states in fewer bits: the same recording, states within a step, whatever made the rounds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import numpy as np
import pyarrow.parquet as pq
import pytest
from recordings import requests_of

from dflash.bench.handover_rows import Case, Rounds, prefill_row
from dflash.bench.replay_files import Made, header
from dflash.cli.main import run
from dflash.draftfile.errors import HeaderInvalid
from dflash.draftfile.feature_values import EncodingUnknown, decoded, encoding_of
from dflash.draftfile.header import encode_header
from dflash.draftfile.reader import open_draft_file
from dflash.engine.lane import Lane
from dflash.engine.output import Part, RecorderPlan, open_here
from dflash.engine.recorder.process import ProcessRecorder, open_process
from dflash.engine.recorder.unmade import Unmade, now
from dflash.engine.request import Request
from dflash.target.sampling import Sampling

Row = dict[str, Any]
COMMON = [name for name in device_runs.LASTING if name not in ("feature_values", "feature_scale")]
# of a code of fp8: three bits of fraction
FINENESS = {"int8": 0.5, "fp8": 2.0**-4}


# its rounds are queued in shapes that are foreseen, and some go back
CONTROL = "match:control=window,control.every=2,control.after=2,control.window=5,control.low=0.4"
PLACES = {"host": ("host", "match"), "device": ("device", "match"), "control": ("device", CONTROL)}
MADE = {
    "host": ("bf16", "int8"),
    "device": ("bf16", "int8", "fp8"),
    "control": ("bf16", "int8"),
}


@pytest.fixture(scope="module")
def recorded(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """One recording by where rounds run and how features are kept."""
    folder, target = tmp_path_factory.mktemp("runs"), device_runs.native_target(tiny)
    drafter = device_runs.write_drafters(target, folder)["dspark"]
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        device_runs.by_reference(patch)
        for place, dtype in ((place, dtype) for place, dtypes in MADE.items() for dtype in dtypes):
            output = folder / f"{place}-{dtype}.parquet"
            rounds, policy = PLACES[place]
            found[place, dtype] = draft_runs.record(
                target, draft_runs.prompts(5), output, drafter=drafter, draft_impl="native", rounds=rounds,
                policy=policy, target_impl="native", length=3, branches=3, lanes=2, temperature=0.8,
                draft_temperature=4.0, max_new_tokens=17, features="all", feature_dtype=dtype,
            )  # fmt: skip
    return found


def width_of(path: Path) -> int:
    features = json.loads(pq.read_metadata(path).metadata[b"dflash.header"])["features"]
    return len(features["taps"]) * features["hidden"]


def plain(row: Row, width: int) -> np.ndarray:
    """bfloat16 states of a row, value by value."""
    high, low = np.split(np.frombuffer(row["feature_values"], "u1"), 2)
    words = [one << 24 | other << 16 for one, other in zip(high.tolist(), low.tolist(), strict=True)]
    return np.array(words, np.uint32).view(np.float32).reshape(-1, width)


@pytest.mark.parametrize(("place", "dtype"), [("device", "int8"), ("device", "fp8"), ("control", "int8")])
def test_a_recording_in_eight_bits_is_the_one_in_sixteen_within_a_step(
    recorded: dict[tuple[str, str], Path], place: str, dtype: str
) -> None:
    """The largest of 128 values is the largest code times the scale, and every value is half a step away."""
    whole, small = (draft_runs.rows(recorded[place, each]) for each in ("bf16", dtype))
    width, tokens = width_of(recorded[place, dtype]), 0
    for sixteen, eight in zip(whole, small, strict=True):
        assert [eight[name] for name in COMMON] == [sixteen[name] for name in COMMON]
        states = plain(sixteen, width)
        found = decoded(eight["feature_values"], eight["feature_scale"], width, dtype)
        assert len(found) == len(states)
        assert len(found) == len(eight["accepted_nodes"]) + 1 if eight["kind"] != 3 else len(found) > 0
        scales = np.array(eight["feature_scale"], np.float32).reshape(len(states), -1)
        for token in range(len(states)):
            for group, scale in enumerate(scales[token]):
                part = slice(128 * group, 128 * group + 128)
                mine, theirs = found[token, part], states[token, part]
                largest = 127 if dtype == "int8" else 448
                assert scale * largest == pytest.approx(abs(theirs).max(), rel=2**-8)
                step = scale if dtype == "int8" else np.maximum(abs(theirs), scale * 2.0**-6)
                assert (abs(mine - theirs) <= FINENESS[dtype] * step * 1.01 + abs(theirs) * 2.0**-8).all()
        tokens += len(states)
    assert tokens > 100


def test_rounds_on_the_device_leave_the_bytes_of_those_through_the_host(
    recorded: dict[tuple[str, str], Path],
) -> None:
    """But for codes between two of which rounding of the states themselves decides."""
    apart = codes = 0
    for mine, theirs in zip(
        *(draft_runs.rows(recorded[each, "int8"]) for each in ("device", "host")), strict=True
    ):
        np.testing.assert_allclose(mine["feature_scale"], theirs["feature_scale"], rtol=1e-5)
        one, other = (np.frombuffer(row["feature_values"], "i1").astype(int) for row in (mine, theirs))
        assert one.shape == other.shape
        assert abs(one - other).max() <= 1
        apart, codes = apart + int((one != other).sum()), codes + len(one)
    assert apart <= codes / 1000


def test_the_file_says_how_its_states_are_kept(
    recorded: dict[tuple[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded["device", "int8"]
    assert open_draft_file(path).header.features["encoding"] == "int8"
    assert run(["doctor", str(path), "--deep", "-q"]) == 0
    capsys.readouterr()
    assert run(["info", str(path)]) == 0
    assert "all, int8, hidden_states" in capsys.readouterr().out


def test_an_encoding_of_a_later_version_is_refused() -> None:
    facts = header(Made(1, dense=True, length=3))
    facts["features"] = {"mode": "all", "encoding": "int4", "hidden": 4, "taps": []}
    with pytest.raises(HeaderInvalid, match=r"features\.encoding"):
        encode_header(facts)
    with pytest.raises(
        EncodingUnknown, match="expected hidden states encoded as bf16, int8, fp8, found 'int4'"
    ):
        encoding_of(facts["features"], Path("run.parquet"))


def test_a_dtype_of_features_that_are_not_kept_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["record", "hello", "--feature-dtype", "int8"]) == 2
    assert "Expected --features all with --feature-dtype, found fingerprint." in capsys.readouterr().err


def requested(order: int) -> Request:
    return Request(str(order), [5, 6], "hi", Sampling(0.0), 0, 64, order=order)


class Handed:
    """Chains of two lanes, whose features are written over as soon as they are handed over."""

    def __init__(self, encoding: str) -> None:
        self.rounds = Rounds(Case(2, 2, 3, 2, features=encoding))
        self.lanes = [Lane.start(at, requested(at), frozenset(), None, None) for at in range(2)]
        self.expected: dict[int, list[bytes]] = {0: [], 1: []}

    def give(self, recorder: Any) -> None:
        """All of it, to a recorder that is left in the middle."""
        for lane in self.lanes:
            recorder.opened(lane)
            recorder.row(lane, {**prefill_row(lane.request), **self.first(lane.index)})
        for number in range(6):
            chain = self.rounds.chain(number, [0, 0], [99, 99])
            self.expect(chain)
            where = chain.numbers[1]
            rows = Unmade(where, self.rounds.maker, chain, chain.size, now())
            recorder.unmade(dict(enumerate(self.lanes)), rows)
            chain.values[:] = 255

    def first(self, index: int) -> Row:
        row = {"feature_values": bytes([index]) * 8, "feature_scale": np.zeros(0, np.float32)}
        self.expected[index].append(row["feature_values"])
        return row

    def expect(self, chain: Any) -> None:
        before = 0
        for lane, emitted in zip(chain.numbers[1].tolist(), chain.numbers[3].tolist(), strict=True):
            words = chain.values[before : before + emitted]
            before += emitted
            flat = words.reshape(-1)
            kept = flat if chain.scales is not None else np.concatenate([flat[1::2], flat[::2]])
            self.expected[lane].append(kept.tobytes())


def planned(encoding: str) -> RecorderPlan:
    facts = header(Made(1, dense=True, length=3)) | {"store_topk": 16, "dense": False, "lanes": 2}
    facts["features"] = {"mode": "all", "encoding": encoding, "hidden": 4, "taps": []}
    return RecorderPlan(Path("run.parquet"), facts, Part("made", 0, 1), 1e-9, False, False, True, True)


@pytest.mark.parametrize("encoding", ["bf16", "int8"])
@pytest.mark.parametrize("place", ["inline", "process", "killed"])
def test_features_that_are_lent_are_recorded_as_they_were(in_folder: Path, place: str, encoding: str) -> None:
    """Chains of many rows travel whole; a decoding process that is killed loses none of them."""
    handed = Handed(encoding)
    if place == "killed":
        recorder = ProcessRecorder(planned(encoding))
        recorder.begin()
        handed.give(recorder)
        # as the system does when a process is killed
        recorder._ring.close()
        os.close(recorder._replies)
        assert recorder._process.wait(60) == 0
        assert run(["recover", "run.journal"]) == 0
    else:
        with (open_here if place == "inline" else open_process)(planned(encoding)) as recorder:
            handed.give(recorder)
            for lane in handed.lanes:
                recorder.closed(lane)
                recorder.ended(lane.request.order)
            recorder.finish()
    for name, rows in requests_of(in_folder / "run.parquet").items():
        assert [row["feature_values"] for row in rows] == handed.expected[int(name)]
