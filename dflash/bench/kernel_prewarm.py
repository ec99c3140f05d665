"""Compile what will be timed in parallel processes; the timed process finds it in the caches on disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Sequence

from dflash.bench.kernel_head import HeadShape
from dflash.bench.kernel_pack import PackShape
from dflash.bench.kernel_products import ProductShape
from dflash.bench.kernel_shapes import Shape

MOST_WORKERS = 12
LayerShape = ProductShape | HeadShape | PackShape


def _build(job: tuple[Shape | LayerShape, str]) -> None:
    """Run one way to compute a shape once, so that its compiled code is on disk."""
    import torch

    from dflash.bench.kernel_accept import compiled_calls, make_trees
    from dflash.bench.kernel_attention import our_calls
    from dflash.bench.kernel_inputs import make_inputs
    from dflash.bench.kernel_peers import ATTENTION_PEERS
    from dflash.bench.kernel_peers_compiled import COMPILED_PEERS

    shape, name = job
    if isinstance(shape, LayerShape):
        with torch.inference_mode():
            _LAYERS[type(shape)](shape, name)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return
    if shape.kernel == "accept":
        compiled_calls([make_trees(shape, 0)])[0]()
        return
    sets = make_inputs(shape, 1)
    if name in ("fast", "replay-exact"):
        our_calls(shape, sets, name)[0]()
    else:
        peer = next(peer for peer in [*ATTENTION_PEERS, *COMPILED_PEERS] if peer.name == name)
        # what fails here fails again where it is timed, and is reported there
        with contextlib.suppress(Exception):
            peer.build(shape, sets)[0]()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _build_product(shape: ProductShape, name: str) -> None:
    import torch

    from dflash.bench.kernel_products import make_products, make_shared, run_product, torch_product

    inputs, shared = make_products(shape, 1)[0], make_shared(shape)
    if name == "torch.compile":
        torch.compile(lambda given: torch_product(shape, given, shared), dynamic=False)(inputs)
    else:
        run_product(shape, inputs, shared, mode=name)


def _build_head(shape: HeadShape, name: str) -> None:
    from dflash.bench.kernel_head import compiled_heads, make_heads, our_heads

    sets = make_heads(shape, 1)
    calls = compiled_heads(shape, sets) if name == "torch.compile" else our_heads(shape, sets, name)
    calls[0]()


def _build_pack(shape: PackShape, name: str) -> None:
    from dflash.bench.kernel_pack import compiled_packs, make_packs, our_packs

    sets = make_packs(shape, 1)
    calls = compiled_packs(shape, sets) if name == "torch.compile" else our_packs(sets)
    calls[0]()


_LAYERS = {ProductShape: _build_product, HeadShape: _build_head, PackShape: _build_pack}


def compile_ahead(shapes: Sequence[Shape | LayerShape], compiled: bool) -> None:
    """Compile our kernels for the shapes, and the peers that compile anything.

    Args:
        shapes: of any kernels.
        compiled: whether the peers of torch.compile are wanted.
    """
    # not FlexAttention: among busy neighbours it would tune itself to a slow configuration, and keep it
    ours = ["fast", "replay-exact"]
    built = ["torch.compile"] if compiled else []
    jobs = [(shape, name) for shape in shapes for name in ([] if shape.kernel == "accept" else ours) + built]
    jobs += [
        (shape, "xformers tree_attention") for shape in shapes if shape.kernel in ("tree", "step", "block")
    ]
    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for _ in pool.imap_unordered(_build, jobs):
            pass
