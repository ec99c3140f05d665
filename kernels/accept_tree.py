"""K5: which path of a drafted tree is accepted and what the target adds, for all requests in one launch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.attention_checks import Impl, check_choice, require_device
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.philox import philox_words
from dflash.kernels.tensor_checks import check_dense

Rule = Literal["greedy", "match", "speculative"]
ACCEPT = 2
_MASK = 0xFFFFFFFF


class Sampled(NamedTuple):
    """What the `speculative` rule reads besides the tree."""

    logp: Tensor
    """float32 `[lanes, nodes]`: log p as stored, given that the node's earlier siblings failed."""
    logq: Tensor
    """float32 `[lanes, nodes]`: log q as drawn; 0 for deterministic proposals."""
    residual: Tensor
    """int32 `[lanes, nodes]`: what is emitted if this node fails and is the last of its siblings."""
    keys: Tensor
    """int32 `[lanes, 2]`: the bits of the request's Philox key."""
    positions: Tensor
    """int32 `[lanes]`: the anchor's position."""
    paths: Tensor | None = None
    """int32 `[lanes, nodes]`: the bits of each node's path hash; None where all are 0, as on chains."""


class Accepted(NamedTuple):
    """What happened in one round, on the device."""

    count: Tensor
    """int32 `[lanes]`: accepted nodes."""
    path: Tensor
    """int32 `[lanes, nodes]`: accepted nodes from the anchor down (the rows to commit), then -1."""
    bonus: Tensor
    """int32 `[lanes]`: the token that the target adds."""
    slot: Tensor
    """int32 `[lanes]`: the slot that the bonus token came from."""


def _coins(depth: Tensor, sampled: Sampled) -> Tensor:
    """Acceptance coins `[lanes, nodes]` in float64: (w + 1/2) / 2**32."""
    index = (depth - 1).clamp_min(0)
    ones = torch.ones_like(index)
    paths = ones * 0 if sampled.paths is None else sampled.paths.long() & _MASK
    counters = [ones * (sampled.positions[:, None].long() & _MASK), ones * ACCEPT, paths, index // 4]
    words = philox_words(counters, [ones * (sampled.keys[:, i, None].long() & _MASK) for i in range(2)])
    return (torch.stack(words, -1).gather(-1, (index % 4)[..., None])[..., 0].double() + 0.5) * 2.0**-32


def _path_sums(logp: Tensor, parents: Tensor, depth: Tensor) -> Tensor:
    """Cumulative log p of every node in float64, added from the anchor down."""
    total = torch.zeros_like(logp, dtype=torch.float64)
    for level in range(1, depth.shape[1] + 1):
        above = torch.where(parents >= 0, total.gather(1, parents.clamp_min(0).long()), 0.0)
        total = torch.where(depth == level, above + logp.double(), total)
    return total


def _reference(
    tokens: Tensor,
    parents: Tensor,
    words: Tensor,
    choices: Tensor,
    logp: Tensor | None,
    sampled: Sampled | None,
) -> Accepted:
    node = torch.arange(tokens.shape[1], device=tokens.device)
    bits = ((words[:, 1:, None] >> node) & 1).bool()
    depth = bits.sum(-1)
    usable = (parents >= -1) & (tokens >= 0) & (depth > 0)
    if sampled is None:
        ok = usable & (tokens == choices.gather(1, (parents + 1).clamp_min(0).long()))
    else:
        passed = _coins(depth, sampled).log() <= sampled.logp.double() - sampled.logq.double()
        ok = usable & passed
        earlier = (parents[:, None] == parents[:, :, None]) & (node < node[:, None]) & ok[:, None]
        ok = ok & ~earlier.any(-1)
    whole = ok & (~bits | ok[:, None]).all(-1)
    length = torch.where(whole, depth, 0)
    count = length.amax(1, keepdim=True)
    final = whole & (length == count)
    if logp is not None:
        total = torch.where(final, _path_sums(logp, parents, depth), -torch.inf)
        final = final & (total == total.amax(1, keepdim=True))
    best = torch.where(final.any(1), final.int().argmax(1), -1)
    inside = torch.where(
        best[:, None] >= 0,
        bits.gather(1, best.clamp_min(0)[:, None, None].expand_as(bits[:, :1]))[:, 0],
        False,
    )
    path = torch.full_like(tokens, -1, dtype=torch.int32)
    path = path.scatter_reduce(
        1, torch.where(inside, depth - 1, 0), torch.where(inside, node, -1).int(), "amax"
    )
    bonus = choices.gather(1, best[:, None] + 1)[:, 0]
    if sampled is not None:
        child = torch.where(usable & (parents == best[:, None]), node, -1).amax(1)
        left = sampled.residual.gather(1, child.clamp_min(0)[:, None])[:, 0]
        bonus = torch.where(child >= 0, left, bonus)
    return Accepted(count[:, 0].int(), path, bonus.int(), (best + 1).int())


def _check_all(
    tokens: Tensor,
    parents: Tensor,
    words: Tensor,
    choices: Tensor,
    rule: Rule,
    logp: Tensor | None,
    sampled: Sampled | None,
) -> None:
    if tokens.dim() != 2 or not 1 <= tokens.shape[1] <= MAX_NODES:
        raise ShapeRefused("tokens", f"[lanes, 1 to {MAX_NODES} nodes]", tokens.shape)
    if (rule == "speculative") != (sampled is not None):
        raise ShapeRefused("sampled", "given for the rule `speculative` and for no other", rule)
    lanes, nodes = tokens.shape
    check_dense("tokens", tokens, torch.int32, (lanes, nodes), tokens)
    check_dense("parents", parents, torch.int32, (lanes, nodes), tokens)
    check_dense("words", words, torch.int64, (lanes, nodes + 1), tokens)
    check_dense("choices", choices, torch.int32, (lanes, nodes + 1), tokens)
    if logp is not None:
        check_dense("logp", logp, torch.float32, (lanes, nodes), tokens)
    if sampled is not None:
        check_dense("sampled.logp", sampled.logp, torch.float32, (lanes, nodes), tokens)
        check_dense("sampled.logq", sampled.logq, torch.float32, (lanes, nodes), tokens)
        check_dense("sampled.residual", sampled.residual, torch.int32, (lanes, nodes), tokens)
        check_dense("sampled.keys", sampled.keys, torch.int32, (lanes, 2), tokens)
        check_dense("sampled.positions", sampled.positions, torch.int32, (lanes,), tokens)
        if sampled.paths is not None:
            check_dense("sampled.paths", sampled.paths, torch.int32, (lanes, nodes), tokens)


def _launch(
    tokens: Tensor,
    parents: Tensor,
    words: Tensor,
    choices: Tensor,
    logp: Tensor | None,
    sampled: Sampled | None,
) -> Accepted:
    from dflash.kernels.accept_triton import accept_lane

    lanes, nodes = tokens.shape
    count, bonus, slot = torch.empty((3, lanes), dtype=torch.int32, device=tokens.device)
    path = torch.empty_like(tokens)
    spec = sampled or Sampled(tokens, tokens, tokens, tokens, tokens)
    accept_lane[(lanes,)](
        tokens, parents, words, choices, tokens if logp is None else logp, spec.logp, spec.logq,
        spec.residual, spec.keys, spec.positions, tokens if spec.paths is None else spec.paths,
        count, path, bonus, slot, nodes,
        NODES=max(32, 1 << (nodes - 1).bit_length()), SPECULATIVE=sampled is not None,
        PATHS=spec.paths is not None, TIES=logp is not None and sampled is None,
        num_warps=1 if nodes <= 32 else 2,
    )  # fmt: skip
    return Accepted(count, path, bonus, slot)


def accept_tree(
    tokens: Tensor,
    parents: Tensor,
    words: Tensor,
    choices: Tensor,
    *,
    rule: Rule = "match",
    logp: Tensor | None = None,
    sampled: Sampled | None = None,
    impl: Impl = "triton",
) -> Accepted:
    """Accept a path of each lane's tree; nothing waits for the host.

    `greedy` and `match` accept nodes that equal the choice at their parent's slot and take the longest path,
    ties by cumulative log p where given, then by the lowest node. `speculative` tries the children of a slot
    in order and takes the first with log(u) <= log p - log q, in float64 from the float32 values as stored
    (Leviathan et al. 2023).

    Args:
        tokens: int32 `[lanes, nodes]`, at most 64 nodes; -1 is a pad and never accepted.
        parents: int32 `[lanes, nodes]`, -1 = anchor, -2 = pad; parents before children, siblings in
            proposal order.
        words: int64 `[lanes, nodes + 1]` from `ancestor_words(parents)`.
        choices: int32 `[lanes, nodes + 1]`, the target's choice at each slot (its argmax for `greedy`).
        rule: `greedy` and `match` differ only in where `choices` come from.
        logp: float32 `[lanes, nodes]`, breaks ties of `greedy` and `match`.
        sampled: what `speculative` reads, and no other rule.
        impl: `triton` or `reference`.

    Returns:
        Accepted count, path, bonus token and its slot.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    check_choice("rule", Rule, rule)
    _check_all(tokens, parents, words, choices, rule, logp, sampled)
    if impl == "reference":
        return _reference(tokens, parents, words, choices, None if sampled else logp, sampled)
    require_device("tokens", tokens)
    return _launch(tokens, parents, words, choices, logp, sampled)
