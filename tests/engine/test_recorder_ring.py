"""What goes from a decoding process to its recorder: a ring of shared memory, and the messages in it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.draftfile.rows import RequestRows
from dflash.engine.recorder import pages, ring
from dflash.engine.recorder.ring import (
    CAPACITY,
    WIDE_CAPACITY,
    ReaderGone,
    RingReader,
    RingWriter,
    capacity_for,
)
from dflash.engine.recorder.wire import (
    Forms,
    dumps,
    framed,
    is_form,
    loads,
    packed_row,
    unframed,
    unpacked_row,
)


class Pair:
    """Both ends of a ring in one process; the reader takes what it is told to take."""

    def __init__(self, capacity):
        self.writer = RingWriter(capacity)
        theirs = [os.dup(fd) for fd in (self.writer.memory, self.writer.pieces, self.writer.acknowledged)]
        self.writer.handed_over()
        self.theirs = theirs
        self.taken = []

    def read(self, pause=0.0):
        for message in RingReader(*self.theirs).messages(lambda: 1.0):
            self.taken.append(message)
            time.sleep(pause)
        for descriptor in self.theirs:
            os.close(descriptor)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(8, 200))
def test_a_ring_hands_over_every_message_in_order_whatever_its_size(messages, capacity):
    pair = Pair(capacity)
    reader = threading.Thread(target=pair.read)
    reader.start()
    for message in messages:
        pair.writer.put(message)
        rows, size = pair.writer.queued
        assert rows <= len(messages)
        assert 0 <= size <= capacity
    pair.writer.close()
    reader.join()
    assert pair.taken == messages
    assert all(message.readonly for message in pair.taken)


def test_a_full_ring_blocks_and_counts_and_what_it_holds_outlives_the_writer():
    pair = Pair(1000)
    for number in range(9):
        pair.writer.put(bytes([number]) * 100)
    assert pair.writer.blocked_seconds == 0
    assert pair.writer.queued == (9, 900)
    reader = threading.Timer(0.05, pair.read)
    reader.start()
    for number in range(9, 30):
        pair.writer.put(bytes([number]) * 100)
    assert pair.writer.blocked_seconds > 0
    pair.writer.close()
    reader.join()
    assert pair.taken == [bytes([number]) * 100 for number in range(30)]


def test_a_reader_that_is_gone_is_noticed():
    pair = Pair(1000)
    for descriptor in pair.theirs:
        os.close(descriptor)
    with pytest.raises(ReaderGone):
        pair.writer.put(b"x" * 2000)
    pair.writer.close()


@given(st.booleans(), st.none() | st.integers(0, 1 << 40))
def test_a_ring_is_wider_for_whole_hidden_states_where_there_is_room(whole, free):
    found = capacity_for(whole, free)
    assert CAPACITY <= found <= WIDE_CAPACITY
    assert found == CAPACITY if not whole else found <= max(CAPACITY, (free or 1 << 40) / 16)
    assert found >= capacity_for(whole, None if free is None else free // 2)
    assert capacity_for(True) == WIDE_CAPACITY


@pytest.mark.parametrize("size", [8, pages.STEP, 3 * pages.STEP + 5])
@pytest.mark.parametrize("wait", [0.0, 0.2])
def test_pages_that_are_made_meanwhile_hold_what_is_written(size, wait):
    """And a ring may be closed before all are made."""
    pair = Pair(size)
    pair.writer.make_ready()
    pair.writer.put(b"x")
    time.sleep(wait)
    pair.writer.close()
    pair.read()
    assert pair.taken == [b"x"]


def test_rows_arrive_as_they_left():
    row = {
        "kind": 0,
        "node_token": np.arange(3, dtype=np.int32),
        "node_rank": np.ma.masked_equal([1, -1, 3], -1),
        "slot_gap": np.array([1.5, np.nan], np.float32),
        "accepted_nodes": [],
        "prompt_tokens": (1, 2),
        "node_margin": np.array([None, 1.0], object),
        "emitted": np.int16(3),
        "truncated_by": "none",
        "bonus_token": None,
    }
    tables = []
    for found in (row, unpacked_row(loads(dumps(packed_row(row)))[0])):
        rows = RequestRows("a")
        rows.append(found)
        tables.append(rows.table())
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1, 1 << 20])
@pytest.mark.parametrize("lent", [bytes, lambda data: np.frombuffer(bytearray(data), np.uint8).data])
def test_many_bytes_of_a_row_are_read_where_they_lie_in_its_message(size, lent):
    states, few = lent(np.random.default_rng(size).bytes(size)), b"few"
    message = b"".join(framed("row", 3, packed_row({"feature_values": states, "control_state": few})))
    _, _, packed = unframed(message)
    found = unpacked_row(packed)
    assert (bytes(found["feature_values"]), found["control_state"]) == (states, few)
    if size > 1 << 16:
        assert found["feature_values"].obj is message
    rows = RequestRows("a", features=True)
    for row in ({"feature_values": found["feature_values"]}, {}, {"feature_values": few}):
        rows.append(row)
    assert rows.table()["feature_values"].to_pylist() == [bytes(states), None, few]


@pytest.mark.parametrize("capacity", [2000, 1 << 20])
@pytest.mark.parametrize("size", [1, 300, 1 << 16, (1 << 16) + 1, 300_000])
def test_what_was_handed_over_is_read_whatever_is_written_over_it_later(capacity, size):
    """Hidden states of a prompt of any size, and rings that hold a hundredth of it."""
    pair = Pair(capacity)
    reader = threading.Thread(target=pair.read)
    reader.start()
    lent, expected = np.empty(size, np.uint8), []
    for number in range(5):
        lent[:] = np.random.default_rng(number).integers(0, 256, size)
        expected.append(lent.tobytes())
        pair.writer.put(*framed("row", number, packed_row({"feature_values": lent.data, "step": number})))
    lent[:] = 0
    pair.writer.close()
    reader.join()
    found = [unframed(message) for message in pair.taken]
    assert [index for _, index, _ in found] == list(range(5))
    assert [bytes(unpacked_row(row)["feature_values"]) for _, _, row in found] == expected


ARRAYS = [
    np.arange(3, dtype=np.int32),
    np.zeros((0, 4), np.float32),
    np.arange(24.0).reshape(2, 3, 4)[:, ::2],
    np.array([7], np.uint16),
]


@given(st.lists(st.sampled_from(range(len(ARRAYS))), max_size=6), st.binary(max_size=40))
def test_a_message_arrives_as_it_was_said(which, data):
    said = ("rows", data, tuple(ARRAYS[place] for place in which), {"known": 3})
    found = unframed(b"".join(framed(*said)))
    assert (found[:2], found[3]) == (said[:2], said[3])
    for one, other in zip(found[2], said[2], strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
        assert one.ctypes.data % one.itemsize == 0


class Pair3(NamedTuple):
    """Values of three fields."""

    first: Any
    second: Any
    third: Any


@given(
    st.lists(
        st.tuples(
            st.sampled_from([tuple, Pair3]), st.lists(st.sampled_from(range(len(ARRAYS) + 2)), max_size=3)
        ),
        max_size=4,
    )
)
def test_tuples_of_arrays_arrive_as_they_were_whatever_came_before(which):
    others = [None, ["a", "b"]]
    writer, reader = Forms(), Forms()
    for kind, places in which:
        values = [[*ARRAYS, *others][place] for place in places]
        said = kind(values) if kind is tuple else kind(*values, *[None] * (3 - len(values)))
        text = b"".join(writer.framed((7, b"known"), said))
        assert is_form(text)
        *known, found = reader.unframed(text)
        assert (known, type(found), len(found)) == ([7, b"known"], kind, len(said))
        for one, other in zip(found, said, strict=True):
            if isinstance(other, np.ndarray):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype
                assert not one.flags.writeable
                assert one.ctypes.data % one.itemsize == 0
            else:
                assert one == other
    assert not is_form(b"".join(framed("row", 1)))


def test_more_messages_than_a_reader_has_begun_to_take_lie_ready(monkeypatch):
    """Where the system's pipes can be made large; smaller ones block, which is counted, and lose nothing."""
    for size in (ring.PIPE, 1 << 16):
        monkeypatch.setattr(ring, "PIPE", size)
        pair = Pair(1 << 20)
        if not ring.widen(pair.theirs[1]):
            pytest.skip("pipes are as the system makes them")
        many = size // ring.PIECE.size - 400
        for number in range(many):
            pair.writer.put(number.to_bytes(4))
        assert pair.writer.blocked_seconds == 0
        reader = threading.Timer(0.05, pair.read)
        reader.start()
        for number in range(many, many + 800):
            pair.writer.put(number.to_bytes(4))
        assert pair.writer.blocked_seconds > 0
        # nobody learns how far the reader has come, and it comes to the end all the same
        while len(pair.taken) < many + 800:
            time.sleep(0.01)
        assert pair.writer.queued == (0, 0)
        pair.writer.close()
        reader.join()
        assert pair.taken == [number.to_bytes(4) for number in range(many + 800)]
