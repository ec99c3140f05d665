"""What a recording will take of memory, before it starts, and how many lanes fit.

Peaks are sums of what is alive at once, rounded up; a tenth of what is free is left to allocators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.lm import LanguageModelDrafter
from dflash.drafters.union import UnionDrafter
from dflash.engine.dense.dense_pass import ROW_BUDGET
from dflash.engine.dense.lanes import lanes_for
from dflash.engine.device.ladder import RING, rung_lengths
from dflash.engine.device.plan import chain_of
from dflash.engine.device.record import CHAINS
from dflash.engine.features import FeatureMode, bytes_a_token, default_taps
from dflash.engine.recorder.ring import capacity_for
from dflash.engine.settings import RecordSettings
from dflash.errors import DflashError
from dflash.kernels.ancestors import MAX_NODES
from dflash.target.lane_prefill import PIECES, sizes_up_to
from dflash.target.load import Target
from dflash.target.model import PREFILL_ROWS
from dflash.target.native import padded_width

Place = Literal["device", "host"]
# of what is free, for fragmentation and what no formula knows
SPARE = 0.1
# a row group in the making, twice: the rows and what becomes of them
ROW_GROUPS = 2 * (64 << 20)
FLOAT = 4
# numpy's own bytes for the lists of one row
ROW_OVERHEAD = 6_000
CONTEXT = 1024


class Part(NamedTuple):
    """One thing that takes memory, in bytes.

    Attributes:
        held: Of `fixed`, what is allocated already.
        a_lane: For every lane, on top of `fixed`.
    """

    name: str
    place: Place
    fixed: int = 0
    a_lane: int = 0
    held: int = 0

    def bytes(self, lanes: int) -> int:
        """All of it."""
        return self.fixed + lanes * self.a_lane


class Free(NamedTuple):
    """Bytes that can still be allocated; None where the system does not tell."""

    device: int | None
    host: int | None


class TooLittleMemory(DflashError):
    """Not even one lane fits."""

    def __init__(self, parts: Sequence[Part], free: int, context: int) -> None:
        needed = sum(part.bytes(1) - part.held for part in parts)
        listed = ", ".join(
            f"{part.name} {size(part.bytes(1) - part.held)}" for part in parts if part.bytes(1) > part.held
        )
        super().__init__(
            f"Expected {size(needed)} of free memory for one lane of {context} tokens ({listed}), found "
            f"{size(free)} less a tenth. Shorten the longest prompt, lower --max-new-tokens, --length or "
            "--branches, leave out --dense, or take a smaller drafter."
        )


class WeightsTooLarge(DflashError):
    """The weights of a model do not fit."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__(
            f"The weights of {name} do not fit into the memory of {device}. Expected a smaller model, "
            "--target-quant int8, or --dtype bfloat16."
        )


class RanOutOfMemory(DflashError):
    """Memory ran out in the middle of a recording."""

    def __init__(self, error: BaseException, lanes: int, kept: bool) -> None:
        reason = str(error).splitlines()[0] if str(error) else "the host has none left"
        told = f"Memory ran out with {lanes} {'lane' if lanes == 1 else 'lanes'} ({reason})"
        fewer = f"--lanes {lanes // 2} --resume" if lanes > 1 else "--resume, once more of it is free,"
        advice = f"every round until then is kept, and the same command with {fewer} goes on"
        super().__init__(f"{told}; {advice if kept else 'nothing had been recorded'}.")


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The parts of a recording's memory.

    Attributes:
        context: Tokens of a lane's trunk, prompt and answer, that the estimate is for.
        shared: The device is the host's own memory.
    """

    parts: tuple[Part, ...]
    lanes: int
    context: int
    shared: bool

    def total(self, place: Place) -> int:
        """Bytes in one place at this many lanes, those held already included."""
        return sum(part.bytes(self.lanes) for part in self._in(place))

    def lanes_that_fit(self, free: Free) -> int:
        """At most `lanes`.

        Raises:
            TooLittleMemory: Not even one lane fits.
        """
        found = self.lanes
        for place, bytes_free in (("device", free.device), ("host", free.host)):
            parts = self._in(place)
            if bytes_free is None or not parts:
                continue
            room = int(bytes_free * (1 - SPARE)) - sum(part.fixed - part.held for part in parts)
            a_lane = sum(part.a_lane for part in parts)
            fits = room // a_lane if a_lane else self.lanes
            if fits < 1 or room < 0:
                raise TooLittleMemory(parts, bytes_free, self.context)
            found = min(found, fits)
        return found

    def facts(self) -> dict[str, Any]:
        """The estimate as the header and `dflash.record/1` have it."""
        sizes = {"device": 0 if self.shared else self.total("device"), "host": self.total("host")}
        if self.shared:
            sizes["host"] = self.total("device")
        listed = [
            {"name": part.name, "place": part.place, "bytes": part.bytes(self.lanes)} for part in self.parts
        ]
        return {"lanes": self.lanes, "context": self.context, **sizes, "parts": listed}

    def text(self) -> str:
        """One line."""
        listed = ", ".join(f"{part.name} {size(part.bytes(self.lanes))}" for part in self.parts)
        lanes = "1 lane" if self.lanes == 1 else f"{self.lanes} lanes"
        return f"memory for {lanes} of {self.context} tokens: {listed}"

    def _in(self, place: str) -> list[Part]:
        if self.shared:
            return list(self.parts) if place == "device" else []
        return [part for part in self.parts if part.place == place]


def estimate(target: Target, drafter: Drafter, settings: RecordSettings, context: int) -> MemoryEstimate:
    """What a recording with these settings takes when its longest trunk has `context` tokens."""
    config = target.model.config.get_text_config()
    width = next(target.model.parameters()).element_size()
    nodes = settings.length * settings.branches * max(1, len(drafter.headers()))
    rows = capacity(context + nodes + 1)
    token = _row_bytes(settings, nodes) + _states(config, drafter, settings)
    parts = (
        _weights("target weights", [target.model]),
        Part("trunk K/V", "device", 0, rows * token_bytes(config, width)),
        Part("tree scratch", "device", *_scratch(config, width, settings, nodes, rows)),
        _weights("drafter weights", _modules(drafter)),
        Part("drafter context", "device", 0, rows * _context_bytes(drafter)),
        Part("dense lanes", "device", _dense_lanes(config, width, drafter, settings, context)),
        Part("device rounds", "device", *_device_rounds(config, width, drafter, settings, context)),
        Part("packed features", "device", 0, _packed(config, drafter, settings)),
        Part("noise", "host", 0, _noise(config, settings)),
        Part("recorder ring", "host", _ring(settings) if settings.apart(target.device.type) else 0),
        Part("recorder", "host", ROW_GROUPS, _answer(settings, context) * token),
    )
    kept = tuple(part for part in parts if part.bytes(1))
    return MemoryEstimate(kept, settings.lanes, context, target.device.type == "cpu")


def capacity(tokens: int) -> int:
    """Rows that a trunk cache comes to: it doubles until all fit."""
    rows = CONTEXT
    while rows < tokens:
        rows *= 2
    return rows


def token_bytes(config: Any, width: int) -> int:
    """Keys and values of one token, all layers, at `width` bytes a value."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * _head(config) * width


def size(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _head(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _weights(name: str, modules: Iterable[torch.nn.Module]) -> Part:
    tensors = chain.from_iterable(chain(module.parameters(), module.buffers()) for module in modules)
    count = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
    return Part(name, "device", count, 0, count)


def _modules(drafter: Drafter) -> list[torch.nn.Module]:
    match drafter:
        case UnionDrafter():
            return [module for one in drafter.drafters for module in _modules(one)]
        case BlockFamily():
            return [drafter.model]
        case LanguageModelDrafter():
            return [drafter.model.model]
    return []


def _context_bytes(drafter: Drafter) -> int:
    """Of one token and lane in a drafter's own caches."""
    match drafter:
        case UnionDrafter():
            return sum(_context_bytes(one) for one in drafter.drafters)
        case BlockFamily():
            config = drafter.config
            width = next(drafter.model.parameters()).element_size()
            return 2 * len(config.layers) * config.kv_heads * config.head_dim * width
        case LanguageModelDrafter():
            return token_bytes(drafter.model.config, next(drafter.model.model.parameters()).element_size())
    return 0


def _scratch(config: Any, width: int, settings: RecordSettings, nodes: int, rows: int) -> tuple[int, int]:
    """What a forward leaves beside the cache, fixed and a lane: a prompt's chunk, then trees side by side.

    Logits are there as they come, as float32, and as log p; hidden states of all layers are kept for taps.
    """
    logits = (nodes + 1) * int(config.vocab_size) * (width + 2 * FLOAT)
    states = int(config.num_hidden_layers) + 1 if settings.features != "none" else 2
    inner = int(getattr(config, "intermediate_size", 0) or 4 * config.hidden_size)
    row = (states * int(config.hidden_size) + 3 * inner) * width
    # transformers repeats keys and values for grouped heads, a layer at a time
    repeated = 2 * rows * int(config.num_attention_heads) * _head(config) * width
    dense = ROW_BUDGET * (int(config.vocab_size) * (width + 2 * FLOAT) + row) if settings.dense else 0
    return max(PREFILL_ROWS * row, dense), logits + (nodes + 1) * (row + rows) + repeated


def _dense_lanes(config: Any, width: int, drafter: Drafter, settings: RecordSettings, context: int) -> int:
    """What native dense passes hold beside live lanes: copies of a trunk, and a step's rows and logits."""
    nodes = settings.length * settings.branches * max(1, len(drafter.headers()))
    if not settings.dense or settings.target_impl == "generic" or nodes >= MAX_NODES:
        return 0
    rows = capacity(context + MAX_NODES)
    context_bytes = _context_bytes(drafter) if settings.draft_impl == "native" else 0
    a_lane = rows * (token_bytes(config, width) + context_bytes)
    step = padded_width(nodes + 1, settings.numerics)
    # logits are looked at while the next ones come
    row = _step_row(config, width, drafter) + int(config.vocab_size) * width
    return lanes_for(step, a_lane) * (a_lane + step * row)


def _step_row(config: Any, width: int, drafter: Drafter) -> int:
    """Of one row in a native step: logits, what layers make of it, and its taps."""
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", 0) or 4 * hidden)
    queries = int(config.num_attention_heads) * _head(config)
    taps = _tapped(config, drafter)
    return (int(config.vocab_size) + inner + 4 * hidden + 3 * queries + taps) * width


def _tapped(config: Any, drafter: Drafter) -> int:
    """Numbers of a token's hidden states that a block drafter reads."""
    return len(drafter.config.taps) * int(config.hidden_size) if isinstance(drafter, BlockFamily) else 0


def _device_rounds(
    config: Any, width: int, drafter: Drafter, settings: RecordSettings, context: int
) -> tuple[int, int]:
    """What captured steps hold, fixed and a lane: chunks of prompts and angles of positions; then rows and
    logits of both models at every length that may run.
    """
    if settings.target_impl == "generic" or settings.rounds == "host":
        return 0, 0
    steered, block = settings.policy.control.adaptive, isinstance(drafter, BlockFamily)
    # under control each length has a graph of one round and one of a chain
    lengths = 2 * rung_lengths(settings.length) if steered else [settings.length]
    row = _step_row(config, width, drafter)
    logits, rows = int(config.vocab_size) * width, capacity(context + settings.length * settings.branches + 1)
    fixed = (1 + block) * rows * _head(config) * FLOAT
    for pieces in sizes_up_to(settings.lanes, context):
        # a forward of prompts leaves the logits of their last rows
        fixed += pieces * MAX_NODES * (row - logits) + PIECES[-1] * logits
    found = RING * _tapped(config, drafter) * width if steered else 0
    for length in lengths:
        nodes = length * settings.branches
        found += padded_width(nodes + 1, settings.numerics) * row
        if isinstance(drafter, BlockFamily) and nodes:
            found += drafter.config.block_size * row + nodes * int(config.vocab_size) * FLOAT
    return fixed, found


def _states(config: Any, drafter: Drafter, settings: RecordSettings) -> int:
    """A token's hidden states as they are recorded, where all are."""
    if settings.features != FeatureMode.ALL:
        return 0
    taps = drafter.taps or default_taps(int(config.num_hidden_layers))
    return bytes_a_token(settings.features, len(taps), int(config.hidden_size), settings.feature_dtype)


def _packed(config: Any, drafter: Drafter, settings: RecordSettings) -> int:
    """What rounds on the device have packed and the host has not read."""
    if settings.target_impl == "generic" or settings.rounds == "host":
        return 0
    lengths = rung_lengths(settings.length) if settings.policy.control.adaptive else [settings.length]
    # under control there are rounds in chains, and single ones
    chains = [settings.chain or chain_of(length) for length in lengths]
    most = sum(
        (chain + (len(lengths) > 1)) * (length + 1) for chain, length in zip(chains, lengths, strict=True)
    )
    return CHAINS * most * _states(config, drafter, settings)


def _noise(config: Any, settings: RecordSettings) -> int:
    sampled = settings.defaults.sampling.temperature > 0
    return 64 * int(config.vocab_size) * FLOAT if sampled else 0


def _answer(settings: RecordSettings, context: int) -> int:
    return min(settings.defaults.max_new_tokens, context)


def _ring(settings: RecordSettings) -> int:
    """What it takes at most: it is smaller where little is free."""
    return capacity_for(settings.features == FeatureMode.ALL)


def _row_bytes(settings: RecordSettings, nodes: int) -> int:
    """Of one token that may become a row, twice where a dense row follows the live one."""
    slot = 9 * FLOAT + 5 * settings.store_topk * FLOAT
    return (ROW_OVERHEAD + (nodes + 1) * slot) * (2 if settings.dense else 1)
