from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.policy import noise
from dflash.policy.noise import Purpose
from dflash.policy.philox import philox4x32
from dflash.policy.rounds import Rounds

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "philox4x32_10.json").read_text())["vectors"]
KEY = (0x12345678, 0x9ABCDEF0)
RANKS = st.lists(st.integers(0, 300), max_size=6)


def hexes(texts):
    return np.array([int(text, 16) for text in texts], dtype=np.uint32)


def plain_philox(counter, key):
    c, k = [int(word) for word in counter], [int(word) for word in key]
    for step in range(10):
        if step:
            k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
    return c


def plain_fnv(ranks):
    state = 0x811C9DC5
    for rank in ranks:
        for byte in (rank % 256, rank // 256):
            state = ((state ^ byte) * 0x01000193) % 2**32
    return state


@pytest.mark.parametrize("vector", VECTORS)
def test_published_vectors(vector):
    found = philox4x32(hexes(vector["counter"]), hexes(vector["key"]))
    assert [f"{word:08x}" for word in found] == vector["words"]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_philox_equals_whole_number_arithmetic(numbers):
    counter, key = np.array(numbers[:4], dtype=np.uint32), np.array(numbers[4:], dtype=np.uint32)
    assert philox4x32(counter, key).tolist() == plain_philox(counter, key)


def test_philox_broadcasts_and_leaves_its_input_alone():
    counter = np.arange(24, dtype=np.uint32).reshape(3, 2, 4)
    before = counter.copy()
    found = philox4x32(counter, np.array([1, 2], dtype=np.uint32))
    assert found.shape == (3, 2, 4)
    np.testing.assert_array_equal(counter, before)
    assert found[2, 1].tolist() == plain_philox(counter[2, 1], (1, 2))


def test_a_key_follows_from_seed_prompt_and_ordinal():
    prompt = hashlib.sha256(b"\x05\0\0\0\x00\x01\0\0").digest()
    digest = hashlib.sha256((3).to_bytes(8, "little") + prompt + (2).to_bytes(4, "little")).digest()
    expected = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
    assert noise.request_key(3, [5, 256], 2) == expected
    others = [noise.request_key(*facts) for facts in ((4, [5, 256], 2), (3, [5], 2), (3, [5, 256], 1))]
    assert len({expected, *others}) == 4
    assert noise.request_key(2**64 - 1, [], 0) != noise.request_key(0, [], 0)


@given(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)))
def test_a_key_is_written_as_sixteen_digits(key):
    text = noise.rng_key_hex(key)
    assert len(text) == 16
    assert noise.parse_rng_key(text) == key


@pytest.mark.parametrize("text", ["", "12", "0" * 15, "0" * 17, "xyz" * 5 + "0"])
def test_a_malformed_key_is_refused(text):
    with pytest.raises(ValueError):
        noise.parse_rng_key(text)


@given(RANKS)
def test_trailing_zeros_do_not_change_a_path(ranks):
    assert noise.path_hash([*ranks, 0, 0]) == noise.path_hash(ranks)


@given(RANKS, st.integers(1, 300))
def test_a_path_hash_is_fnv_1a(ranks, last):
    assert noise.path_hash([*ranks, last]) == plain_fnv([*ranks, last])
    assert noise.path_hash([0] * len(ranks)) == 0


@given(st.lists(st.integers(-1, 8), max_size=9), st.integers(0, 3))
def test_hashes_of_a_batch_equal_those_of_single_paths(choices, rounds):
    parents = [min(parent, node - 1) for node, parent in enumerate(choices)]
    batch = Rounds.build(
        np.full(rounds, len(parents)),
        np.tile(np.array(parents, dtype=np.int64), rounds),
        np.arange(rounds),
        np.zeros((rounds, 2), dtype=np.uint32),
        {},
    )
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), parents[:node].count(parent)])
    assert batch.path_hash.tolist() == [noise.path_hash(path) for path in paths] * rounds
    assert batch.node_depth.tolist() == [len(path) for path in paths] * rounds


def test_a_coin_is_the_word_of_its_depth_under_its_own_path():
    parents = np.array([-1, 0, 1, 2, 3, -1, 5])
    rounds = Rounds.build(
        np.array([7, 7]),
        np.tile(parents, 2),
        np.array([40, 41]),
        np.array([KEY, (1, 2)], dtype=np.uint32),
        {},
    )
    found = noise.coins(
        rounds.key, rounds.anchor_position, rounds.node_round, rounds.node_depth, rounds.path_hash
    )
    paths = [(0,), (0, 0), (0, 0, 0), (0,) * 4, (0,) * 5, (1,), (1, 0)]
    for node, path in enumerate(paths * 2):
        position, key = ((40, KEY), (41, (1, 2)))[node // 7]
        depth = len(path)
        counter = (position, int(Purpose.ACCEPT), noise.path_hash(path), (depth - 1) // 4)
        assert found[node] == (plain_philox(counter, key)[(depth - 1) % 4] + 0.5) / 2**32
    assert len(set(found.tolist())) == len(found)


def test_exponentials_follow_the_counter_layout():
    found = noise.draft_exponentials(KEY, 9, 3, (2, 0), 11)
    for token in range(11):
        counter = (9, 1 + 256 * 3, noise.path_hash((2, 0)), token // 4)
        uniform = np.float32((plain_philox(counter, KEY)[token % 4] + 0.5) / 2**32)
        assert found[token] == -np.log1p(-np.float64(uniform))
    assert len(noise.target_exponentials(KEY, 9, 11)) == 11


def test_purposes_positions_depths_and_paths_are_independent():
    streams = [
        noise.target_exponentials(KEY, 9, 64),
        noise.target_exponentials(KEY, 10, 64),
        noise.draft_exponentials(KEY, 9, 1, (), 64),
        noise.draft_exponentials(KEY, 9, 2, (0,), 64),
        noise.draft_exponentials(KEY, 9, 2, (1,), 64),
        noise.residual_exponentials(KEY, 9, 1, (), 64),
        noise.target_exponentials((KEY[1], KEY[0]), 9, 64),
    ]
    assert len({stream.tobytes() for stream in streams}) == len(streams)
    correlation = np.corrcoef(np.array(streams)) - np.eye(len(streams))
    assert np.abs(correlation).max() < 0.5


def test_a_longer_vocabulary_keeps_the_noise_of_the_shorter():
    short, long = noise.target_exponentials(KEY, 3, 5), noise.target_exponentials(KEY, 3, 4_000)
    np.testing.assert_array_equal(short, long[:5])


def test_exponentials_have_mean_and_variance_one():
    drawn = noise.target_exponentials(KEY, 0, 200_000)
    assert abs(drawn.mean() - 1) < 0.01
    assert abs(drawn.var() - 1) < 0.03


def test_a_race_follows_its_weights():
    weight = np.array([0.5, 0.0, 1.5, 2.0])
    draws = np.bincount(
        [noise.race(noise.target_exponentials(KEY, t, 4), weight) for t in range(4_000)], minlength=4
    )
    assert draws[1] == 0
    assert np.abs(draws / 4_000 - weight / 4).max() < 0.03


def test_races_at_the_edge():
    inf = np.inf
    assert noise.race(np.array([1.0, 1.0]), np.array([0.5, 0.5])) == 0
    assert noise.race(np.array([inf, 2.0]), np.array([0.9, 0.1])) == 1
    assert noise.race(np.array([inf, inf, inf]), np.array([0.0, 0.5, 0.5])) == 1
    assert noise.race(np.array([1.0, 2.0]), np.zeros(2)) == -1
    assert noise.race(np.array([1.0, 2.0]), np.array([np.nan, 0.1])) == 1
