"""Block drafters as drafters: one forward for many anchors, context computed once, tokens drawn from q."""

from __future__ import annotations

import itertools

import block_models
import draft_runs
import numpy as np
import pytest
import torch

from dflash.drafters.base import Anchor, DraftShape, ProposalKind
from dflash.drafters.block.masks import block_masks
from dflash.engine.dense.dense_pass import tree_rows
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.policy.rounds import Rounds

TEXT = [ord(letter) for letter in "one two three one two three"]


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    found = {}
    for kind in ("dflash", "dflash2", "dspark-rnn"):
        found[kind] = tmp_path_factory.mktemp("drafters") / kind
        block_models.write_block(block_models.drafter(tiny.model, kind), found[kind], 2)
    return found


@pytest.fixture
def session(tiny, tmp_path, folders):
    def made(kind, **given):
        chosen = {"length": 4, "branches": 2, "features": "none"} | given
        return draft_runs.session(
            tiny, tmp_path / "x.parquet", drafter=block_models.named(kind, folders[kind]), **chosen
        )

    return made


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark-rnn"])
@torch.inference_mode()
def test_training_forward_is_what_is_drafted(tiny, kind):
    """Blocks of many anchors in one pass are those of one anchor on a context that ends before it."""
    model = block_models.drafter(tiny.model, kind).eval()
    tokens = torch.randint(0, 255, (2, 14))
    taps = torch.randn(2, 14, 128)
    anchors = torch.tensor([[1, 5, 13], [7, 7, 2]])
    whole = model(tokens, taps, anchors)
    for row, column in itertools.product(range(2), range(3)):
        anchor = anchors[row : row + 1, column : column + 1]
        length = int(anchor)
        context = model.context(taps[row : row + 1, :length])
        past = model.key_values(context, torch.arange(length)[None])
        masks = block_masks(model.config.layers, anchor, model.config.block_size, length)
        alone = model.blocks(tokens[row : row + 1, length : length + 1], anchor, past, masks)
        torch.testing.assert_close(whole[row, column], alone[0, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("branches", [1, 4])
def test_context_is_computed_once_a_token_and_branches_cost_nothing(session, branches):
    """Rows of context are committed tokens, rows of blocks are rounds x block; bytes hold the trunk once."""
    run = session("dspark-rnn", branches=branches, max_new_tokens=12, temperature=0.7)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(2))
    lanes = []
    run.record(run.conversations(entries, check=True), on_request=lanes.append)
    drafter, config = run.drafter, run.drafter.config
    seen = [row for row in draft_runs.rows(run.settings.output) if row["kind"] == 0]
    cached = sum(len(row["accepted_nodes"]) + 1 for row in seen)
    assert drafter.projected == sum(len(lane.request.prompt_tokens) for lane in lanes) + cached
    assert drafter.work.rows == len(seen) * config.block_size
    assert drafter.work.forwards == len(seen)
    layers = len(config.layers) * 2 * config.kv_heads * config.head_dim
    assert drafter.cache.nbytes == layers * drafter.cache.capacity * 4


def seeded(run, count):
    """Anchors at one place with different keys, and their drafts."""
    states = run.trunk.append(0, TEXT).taps
    run.drafter.open(0)
    run.drafter.see(0, states)
    anchors = [Anchor(0, len(TEXT) - 1, (number, 77), TEXT, 0.8) for number in range(count)]
    return run.drafter.propose(anchors, DraftShape(2, 2))


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark-rnn"])
@pytest.mark.parametrize("proposal", [ProposalKind.SHARED, ProposalKind.INDEPENDENT])
def test_siblings_are_drawn_from_q_without_replacement(session, kind, proposal):
    """Pairs of siblings at the anchor, over many keys, against q(a) q(b) / (1 - q(a))."""
    run = session(kind, temperature=0.8, draft_temperature=6.0, proposal=proposal, draft_top_k=4)
    count = 400
    proposals = seeded(run, count)
    law = proposals[0].law[-1]
    q = dict(zip(law.tokens.tolist(), np.exp(law.log_q), strict=True))
    assert sum(q.values()) == pytest.approx(1.0)
    pairs = list(itertools.permutations(q, 2))
    expected = np.array([q[one] * q[two] / (1 - q[one]) * count for one, two in pairs])
    drawn = [tuple(found.tokens[:2]) for found in proposals]
    seen = np.array([drawn.count(pair) for pair in pairs])
    assert seen.sum() == count
    assert expected.min() > 5
    # twelve pairs: 11 degrees of freedom, one in ten thousand
    assert ((seen - expected) ** 2 / expected).sum() < 37.4
    for found in proposals[:20]:
        conditional = q[found.tokens[1]] / (1 - q[found.tokens[0]])
        assert found.log_q[:2] == pytest.approx([np.log(q[found.tokens[0]]), np.log(conditional)], abs=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "dspark-rnn"])
def test_only_heads_that_read_the_token_before_tell_branches_apart(session, kind):
    """Without them the tails of all branches are one forward's: no sibling conditions them."""
    found = seeded(session(kind), 1)[0]
    tails = [found.lse[node] for node, parent in enumerate(found.parents) if parent < 0]
    assert (tails[0] == pytest.approx(tails[1])) == (kind == "dflash")
    (entry,) = session(kind).drafter.headers()
    assert entry["siblings"] == ("unseen" if kind == "dflash" else "seen")
    assert entry["taps"] == [1, 2]


def test_drafting_without_taps_is_an_error(session):
    run = session("dflash")
    run.drafter.open(0)
    with pytest.raises(RuntimeError, match="see was not called"):
        run.drafter.propose([Anchor(0, 3, (1, 2), TEXT)], DraftShape(2))


@pytest.mark.parametrize("kind", ["dflash2", "dspark-rnn"])
def test_speculative_emits_the_targets_law(session, kind):
    """The first token of a round, over many keys: accepted or drawn from the residual, it follows p."""
    run = session(kind, temperature=0.8, top_k=4, draft_temperature=6.0, policy="speculative")
    count, engine = 160, run.engine
    first = []
    for number, found in enumerate(seeded(run, count)):
        anchor = Anchor(0, len(TEXT) - 1, (number, 77), TEXT, 0.8)
        run.trunk.truncate(0, anchor.position)
        (scored,) = run.trunk.score([tree_rows(anchor, found)])
        run.trunk.drop_nodes(0)
        row = engine.judge.row(anchor, found, scored.logits, run.settings.defaults.sampling)
        decision = run.settings.policy.rule.decide(Rounds.from_row(row, anchor.key), engine.context)
        path = decision.path(0)
        first.append(int(row["node_token"][path[0]]) if path else int(decision.bonus[0]))
    best, tokens = scored.logits[0].topk(4)
    expected = (best / 0.8).softmax(-1).numpy() * count
    seen = np.array([first.count(token) for token in tokens.tolist()])
    assert seen.sum() == count
    # 3 degrees of freedom, one in ten thousand
    assert ((seen - expected) ** 2 / expected).sum() < 21.1
