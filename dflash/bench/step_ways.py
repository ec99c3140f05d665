"""The ways to compute one step: ours, transformers eager and compiled, graphs of torch operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StaticCache

from dflash.bench.step_shapes import make_drafter
from dflash.drafters.block.masks import block_masks
from dflash.drafters.block.model import BlockDrafter, Borrowed
from dflash.drafters.block.native import BlockStep
from dflash.target.llama_step import LlamaStep
from dflash.target.model import TrunkModel
from dflash.target.native_layers import KeyValue, Way
from dflash.target.scratch import LaneRows, Scratch
from dflash.target.step_graphs import capture
from dflash.target.step_inputs import LaneRow

Call = Callable[[], Tensor]
TOP = 16


class Prepared(NamedTuple):
    """A call that leaves logits, and what must be done before each, untimed."""

    call: Call
    before: Callable[[], object] = lambda: None
    holds: object = None
    """What a graph reads by address and must outlive."""


class StepWay(NamedTuple):
    """A way to compute a step; `build` prepares everything that need not be timed."""

    name: str
    build: Callable[[Any], Prepared]
    part: Callable[[Tensor], Tensor] = lambda logits: logits
    """What of the logits it computes."""


@dataclass(frozen=True, slots=True)
class VerifyCase:
    """A tree on a trunk of random keys and values, and the arguments of transformers' forward for it."""

    model: Any
    batch: int
    context: int
    tree: tuple[list[int], list[int]]
    cache: list[KeyValue]
    arguments: dict[str, Any]

    @property
    def rows(self) -> int:
        """Rows a lane: the anchor and its nodes."""
        return len(self.tree[0])


class _Remembering:
    """A model that keeps the arguments of its last forward."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.forward, self.parameters = model.forward, model.parameters
        self.arguments: dict[str, Any] = {}

    def __call__(self, **arguments: Any) -> Any:
        self.arguments = arguments
        return self.model(**arguments)


@torch.inference_mode()
def verify_case(model: Any, nodes: int, context: int, batch: int = 1) -> VerifyCase:
    """Draw an anchor with a tree of `nodes` nodes, and the keys and values of its trunk."""
    g = torch.Generator().manual_seed(nodes)
    parents = [-1, *(int(torch.randint(0, node, (), generator=g)) for node in range(1, nodes + 1))]
    tokens = torch.randint(0, model.config.vocab_size, (nodes + 1,), generator=g).tolist()
    remembering = _Remembering(model)
    trunk = TrunkModel(remembering, batch, context + nodes + 1)
    for lane in range(batch):
        trunk.scratch[lane] = Scratch(context)
    trunk.score([LaneRows(lane, tokens, parents) for lane in range(batch)])
    cache = [
        KeyValue(trunk.cache.keys[layer].normal_(), trunk.cache.values[layer].normal_())
        for layer in range(model.config.num_hidden_layers)
    ]
    return VerifyCase(model, batch, context, (tokens, parents), cache, remembering.arguments)


def exact_verify(case: VerifyCase) -> Tensor:
    """Logits of the case in float32, from the same weights, keys and values."""
    exact = verify_case(copy.deepcopy(case.model).float(), case.rows - 1, case.context, case.batch)
    for own, given in zip(exact.cache, case.cache, strict=True):
        own.keys.copy_(given.keys)
        own.values.copy_(given.values)
    return _eager(exact).call()


def native_verify(case: VerifyCase, way: Way | None = None, top: int = 0) -> Prepared:
    """The native step, in a CUDA graph where there is CUDA; it leaves logits, or the largest of each row."""
    step = LlamaStep("bench", case.model, top=top, way=way)
    step.reserve(case.context + case.rows)
    space = step.space(case.batch, case.rows, case.rows, case.cache)
    tokens, parents = case.tree
    rows: list[LaneRow] = []
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        word, position = (rows[parent].word, rows[parent].position + 1) if parent >= 0 else (0, case.context)
        rows.append(LaneRow(token, position, case.context + node, word | 1 << node))
    for lane in range(case.batch):
        space.inputs.set_lane(lane, case.context, rows)

    def run() -> Tensor:
        output = step.run(space, case.cache)
        return output.best.values if top else output.logits

    return _graphed(run)


def _graphed(call: Call) -> Prepared:
    """The call as a graph, or itself where there is no CUDA."""
    if not torch.cuda.is_available():
        return Prepared(call)
    graph, output = capture(call)

    def replay() -> Tensor:
        graph.replay()
        return output

    return Prepared(replay, holds=call)


def _largest(logits: Tensor) -> Tensor:
    return logits.topk(TOP).values


def _flat(logits: Tensor) -> Tensor:
    return logits.flatten(0, 1)


def _eager(case: VerifyCase) -> Prepared:
    return Prepared(lambda: _flat(case.model(**case.arguments).logits))


def _torch_graph(case: VerifyCase) -> Prepared:
    return _graphed(_eager(case).call)


def _compiled_graph(case: VerifyCase) -> Prepared:
    torch._dynamo.reset()
    compiled = torch.compile(case.model, dynamic=False)
    compiled(**case.arguments)
    return _graphed(lambda: _flat(compiled(**case.arguments).logits))


def _static_cache(case: VerifyCase) -> Prepared:
    """transformers' own way to decode fast: a static cache, and a forward compiled to CUDA graphs."""
    torch._dynamo.reset()
    cache = _static_copy(case)
    compiled = torch.compile(case.model, mode="reduce-overhead", dynamic=False, fullgraph=True)
    given = {name: value for name, value in case.arguments.items() if value is not None}
    given = {name: cache if name in ("cache", "past_key_values") else value for name, value in given.items()}

    def before() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        for layer in cache.layers:
            layer.cumulative_length.fill_(case.context)

    return Prepared(lambda: _flat(compiled(**given).logits), before)


def _static_copy(case: VerifyCase) -> StaticCache:
    cache = StaticCache(config=case.model.config, max_cache_len=case.context + case.rows)
    for layer, store in zip(cache.layers, case.cache, strict=True):
        layer.lazy_initialization(store.keys, store.values)
        layer.keys[:, :, : case.context] = store.keys[:, :, : case.context]
        layer.values[:, :, : case.context] = store.values[:, :, : case.context]
    return cache


VERIFY_WAYS = (
    StepWay("dflash native", native_verify),
    StepWay(
        f"dflash native top {TOP}",
        lambda case: native_verify(case, top=TOP),
        _largest,
    ),
    StepWay("dflash native replay-exact", lambda case: native_verify(case, Way("replay-exact"))),
    StepWay("transformers eager", _eager),
    StepWay("graph of torch operations", _torch_graph),
    StepWay("torch.compile in a graph", _compiled_graph),
    StepWay("compiled static cache", _static_cache),
)


class DraftCase(NamedTuple):
    """A block drafter with context, and the block at its end."""

    drafter: BlockDrafter
    target: Any
    context: int
    cache: Sequence[KeyValue]

    def blocks(self) -> Callable[[], Tensor]:
        """The torch module's logits of all rows of the block."""
        layers, size = self.drafter.config.layers, self.drafter.config.block_size
        anchor = torch.tensor([[self.context]], device=self.cache[0].keys.device)
        masks = block_masks(layers, anchor, size, self.context)
        past = [KeyValue(*(rows[:, :, : self.context] for rows in store)) for store in self.cache]
        token = torch.ones_like(anchor)
        return lambda: self.drafter.logits(self.drafter.blocks(token, anchor, past, masks))[0, 0]


@torch.inference_mode()
def draft_case(target: Any, block: int, context: int) -> DraftCase:
    """A drafter for a target, with random keys and values as context."""
    drafter = make_drafter(target, block)
    config = drafter.config
    shape = (1, config.kv_heads, context + block, config.head_dim)
    like = target.get_input_embeddings().weight
    cache = [KeyValue(*like.new_empty(2, *shape).normal_()) for _ in config.layers]
    return DraftCase(drafter, target, context, cache)


def exact_draft(case: DraftCase) -> Tensor:
    """Logits of the block in float32, from the same weights, keys and values."""
    drafter = copy.deepcopy(case.drafter).float()
    drafter.borrow(Borrowed.of(copy.deepcopy(case.target).float()))
    cache = [KeyValue(store.keys.float(), store.values.float()) for store in case.cache]
    return DraftCase(drafter, case.target, case.context, cache).blocks()()


def native_draft(case: DraftCase, top: int = 0) -> Prepared:
    """The native block step with its head: logits, or the largest of each row."""
    block = case.drafter.config.block_size
    step = BlockStep("bench", case.drafter, head=not top, top=top)
    step.reserve(case.context + block)
    space = step.space(1, block, block, case.cache)
    rows = [
        LaneRow(int(not row), case.context + row, case.context + row, (2 << row) - 1) for row in range(block)
    ]
    space.inputs.set_lane(0, case.context, rows)

    def run() -> Tensor:
        output = step.run(space, case.cache)
        return output.best.values if top else output.logits[0]

    return _graphed(run)


def _compiled_block(case: DraftCase) -> Prepared:
    torch._dynamo.reset()
    compiled = torch.compile(case.blocks(), dynamic=False)
    compiled()
    return _graphed(compiled)


DRAFT_WAYS = (
    StepWay("dflash native", native_draft),
    StepWay(f"dflash native top {TOP}", lambda case: native_draft(case, TOP), _largest),
    StepWay("torch eager", lambda case: Prepared(case.blocks())),
    StepWay("graph of torch operations", lambda case: _graphed(case.blocks())),
    StepWay("torch.compile in a graph", _compiled_block),
)
