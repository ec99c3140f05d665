"""One small launch of each kernel, to be run under compute-sanitizer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash.kernels.accept_tree import Sampled, accept_tree
from dflash.kernels.attention_plan import TILES
from dflash.kernels.block_attention import block_attention
from dflash.kernels.feature_codes import CODES
from dflash.kernels.gate_up import gate_up
from dflash.kernels.lm_head_topk import lm_head_topk
from dflash.kernels.pack_features import feature_ring, pack_features
from dflash.kernels.philox import philox
from dflash.kernels.product_plan import TILES as PRODUCT_TILES
from dflash.kernels.qkv_rope import Rotary, qkv_rope
from dflash.kernels.row_product import row_product
from dflash.kernels.tree_attention import tree_attention
from tests.kernels.accept_cases import draw
from tests.kernels.head_cases import make_head
from tests.kernels.pack_cases import make_round
from tests.kernels.product_cases import draw as draw_rows
from tests.kernels.product_cases import draw_heads
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
    products()
    head()
    torch.cuda.synchronize()


def head() -> None:
    """The head with everything that can be asked of it, and the packing, on sizes that no tile divides."""
    for rows, mapped in ((3, False), (35, True)):
        case = make_head(rows, 5003, 1040, dtype=torch.bfloat16).to("cuda")
        ids = torch.arange(0, 15009, 3, dtype=torch.int32, device="cuda") if mapped else None
        lm_head_topk(case.hidden, case.weight, 5, ids=ids, asked=case.asked, draw=case.draw)
        lm_head_topk(case.hidden, case.weight, 32, ids=ids, asked=case.asked)
    for encoding in CODES:
        ring = feature_ring(40, 200, encoding, "cuda")
        for seed in range(2):
            pack_features(*(t.cuda() for t in make_round(3, 7, 200, torch.bfloat16, seed)), ring)


def products() -> None:
    """The small products, split and whole, on sizes that no tile divides."""
    whole = PRODUCT_TILES["rows", 16, "large"]
    for tile in (whole._replace(programs=1), whole._replace(half=64, programs=10**6, swap=True)):
        case = draw_rows(17, 97 * 2, 1040, torch.bfloat16).to("cuda")
        row_product(case.x, case.weight, norm=case.norm, residual=case.residual, tile=tile)
        gate_up(case.x, case.weight, case.norm, tile=tile)
        heads = draw_heads(17, 2, 1, 96, 1040, torch.bfloat16, pads=3).to("cuda")
        qkv_rope(
            heads.rows.x, heads.rows.weight, heads.rows.norm, Rotary(heads.cos, heads.sin), heads.positions,
            heads.places, heads.k, heads.v, tile=tile,
        )  # fmt: skip


if __name__ == "__main__":
    main()
