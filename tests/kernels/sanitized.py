"""One small launch of each kernel, to be run under compute-sanitizer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels.accept_tree import Sampled, accept_tree
from dflash.kernels.attention_plan import TILES
from dflash.kernels.block_attention import block_attention
from dflash.kernels.philox import philox
from dflash.kernels.tree_attention import tree_attention
from tests.kernels.accept_cases import draw
from tests.kernels.tree_cases import make_case


def main() -> None:
    chain = [j - 1 for j in range(7)]
    for ticket in (False, True):
        tile = TILES[64, 32, "long"]._replace(ticket=ticket)
        for page in (0, 16):
            case = make_case([chain, chain], [70, 200], 4, 64, dtype=torch.bfloat16, page=page, device="cuda")
            tree_attention(*case[:5], 7, pages=case.pages, tile=tile)
    block_attention(case.q, case.k, case.v, case.lengths, pages=case.pages)
    d = draw(3, 17, seed=0).to("cuda")
    accept_tree(*d[:4], rule="match", logp=d.logp)
    accept_tree(*d[:4], rule="speculative", sampled=Sampled(*d[4:]))
    philox(
        torch.zeros((9, 4), dtype=torch.int32, device="cuda"),
        torch.zeros((9, 2), dtype=torch.int32, device="cuda"),
    )
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
