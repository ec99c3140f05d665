"""`model:` needs the target's own tokens; its drafts are those of the model alone."""

from __future__ import annotations

import draft_runs
import pytest
import torch
from tiny_model import byte_tokenizer, write_tiny
from tokenizers import AddedToken

from dflash.drafters.build import OtherTokenizer
from dflash.target.load import load_target


def test_another_tokenizer_is_refused(tiny, tmp_path):
    folder = write_tiny(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|extra|>", special=True)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(OtherTokenizer, match="tokenizer"):
        draft_runs.session(tiny, tmp_path / "x.parquet", drafter=f"model:{folder}")


def test_greedy_drafts_are_the_best_paths_of_the_model(tiny, tmp_path, other_folder):
    """Best tokens at the anchor, then the greedy chain below each, by plain forwards."""
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(1),
        tmp_path / "run.parquet",
        drafter=f"model:{other_folder}",
        length=3,
        branches=3,
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
        expected = [[token] for token in best(prefix, 3)]
        for line in expected:
            for _ in range(2):
                line += best([*prefix, *line], 1)
        lines = []
        for token, parent in zip(row["node_token"], row["node_parent"], strict=True):
            lines.append([*(lines[parent] if parent >= 0 else []), token])
        assert [line for node, line in enumerate(lines) if node not in row["node_parent"]] == expected
