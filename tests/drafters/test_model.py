"""`model:` needs the target's own tokens; its drafts are those of the model alone."""

from __future__ import annotations

import draft_runs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import byte_tokenizer, write_tiny
from tokenizers import AddedToken

from dflash.drafters.build import OtherTokenizer
from dflash.drafters.fan import Fan
from dflash.target.load import load_target


def test_another_tokenizer_is_refused(tiny, tmp_path):
    folder = write_tiny(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|extra|>", special=True)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(OtherTokenizer, match="tokenizer"):
        draft_runs.session(tiny, tmp_path / "x.parquet", drafter=f"model:{folder}")


FANS = [
    pytest.param(None, 3, (3, 1, 1), id="branches at the anchor"),
    pytest.param(Fan((3, 2)), 6, (3, 2, 1), id="a tree"),
    pytest.param(Fan((1, 1, 3)), 3, (1, 1, 3), id="branches at the end"),
    pytest.param(Fan((2, 2, 2)), 5, (2, 2, 2), id="the first branches of a tree"),
]


@pytest.mark.parametrize(("fan", "branches", "children"), FANS)
def test_greedy_drafts_are_the_best_paths_of_the_model(tiny, tmp_path, other_folder, fan, branches, children):
    """Every branch is made of the best tokens after its own prefix, by plain forwards."""
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(1),
        tmp_path / "run.parquet",
        drafter=f"model:{other_folder}",
        length=3,
        branches=branches,
        fan=fan,
        max_new_tokens=8,
        dense=True,
    )
    rows = draft_runs.rows(path)
    (text,) = draft_runs.trunks(rows).values()
    model = load_target(str(other_folder)).model

    def best(tokens, count):
        with torch.inference_mode():
            return model(torch.tensor([tokens])).logits[0, -1].topk(count).indices.tolist()

    for row in (row for row in rows if row["kind"] != 2):
        prefix = text[: row["anchor_position"] + 1]
        expected = [[]]
        for count in children:
            expected = [[*line, token] for line in expected for token in best([*prefix, *line], count)]
        lines = []
        for token, parent in zip(row["node_token"], row["node_parent"], strict=True):
            lines.append([*(lines[parent] if parent >= 0 else []), token])
        drafted = [line for node, line in enumerate(lines) if node not in row["node_parent"]]
        assert drafted == expected[:branches]


@given(
    fan=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda children: Fan(tuple(children))),
    branches=st.integers(1, 40),
    length=st.integers(1, 6),
)
def test_fewer_branches_are_the_first_ones_of_the_whole_tree(fan, branches, length):
    """Dealing branches to children from the anchor on leaves the first paths, in order of sibling ranks."""
    branches = min(branches, fan.branches)
    every = [()]
    for depth in range(1, length + 1):
        width = fan.children[depth - 1] if depth <= len(fan.children) else 1
        every = [(*path, rank) for path in every for rank in range(width)]
    dealt = [((), min(branches, len(every)))]
    cut = Fan(fan.children[:length])
    for depth in range(1, length + 1):
        dealt = [
            ((*path, rank), share)
            for path, through in dealt
            for rank, share in enumerate(cut.shares(depth, through))
        ]
    assert [path for path, _ in dealt] == every[:branches]
    assert all(share == 1 for _, share in dealt)
