"""Fixtures that several folders of tests share: tiny models, written once a session."""

from __future__ import annotations

import pytest
from tiny_model import write_tiny

from dflash.target.load import load_target

__all__ = ["other_folder", "tiny", "tiny_folder"]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The folder of a tiny target."""
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory):
    """Other weights, the same tokenizer."""
    return write_tiny(tmp_path_factory.mktemp("models") / "other", seed=11)


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """The tiny target, loaded."""
    return load_target(str(tiny_folder))
