"""What `bench decode` decodes with: a target that was loaded, or the shape of one with random weights."""

from __future__ import annotations

from typing import Any

import torch

from dflash.bench.step_shapes import make_drafter, make_target
from dflash.drafters.base import Drafter
from dflash.drafters.block.config import Confidence, Markov
from dflash.drafters.block.drafter import BlockFamily
from dflash.drafters.block.model import BlockDrafter
from dflash.drafters.drawing import Drawing
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.target.load import Target
from dflash.target.native_layers import Way

RANDOM = "random"
BLOCK = 7
_DIGEST = "0" * 64


class Subject:
    """A target and the drafter that speculates for it."""

    def __init__(self, target: Target, drafter: str, drafter_name: str) -> None:
        self.target = target
        self.drafter = drafter
        self.name = target.name
        self.drafter_name = drafter_name

    @property
    def device_name(self) -> str:
        """What computes."""
        device = self.target.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

    def session(self, settings: RecordSettings) -> Session:
        """A session of this target; decoding never ends early."""
        return Session(self.target, settings)

    def prompt(self, place: int, tokens: int) -> list[int]:
        """A prompt of so many tokens, another one for every place."""
        text = f"Request {place}: tell me, step by step and at length, how a lighthouse works. "
        ids: list[int] = self.target.tokenizer.encode(text * (1 + tokens // 8))
        return ids[:tokens]


class RandomSubject(Subject):
    """A shape with random weights, and a drafter of the shipped one's kind: its drafts are never right."""

    def __init__(self, target: Target, block: int = BLOCK) -> None:
        super().__init__(target, "none", f"{RANDOM} dspark, block {block}")
        self.block = block

    def session(self, settings: RecordSettings) -> Session:
        """A session whose drafter has random weights, where one drafts."""
        return _RandomSession(self.target, settings, self.block)

    def prompt(self, place: int, tokens: int) -> list[int]:
        """Random tokens."""
        vocabulary = int(self.target.model.config.vocab_size)
        g = torch.Generator().manual_seed(place)
        return torch.randint(0, vocabulary, (tokens,), generator=g).tolist()


class _RandomSession(Session):
    """A session with a random drafter in place of the one that the settings name."""

    def __init__(self, target: Target, settings: RecordSettings, block: int) -> None:
        self._block = block
        super().__init__(target, settings)

    def _drafter(self) -> Drafter:
        settings = self.settings
        if not settings.length:
            return super()._drafter()
        sampling = settings.draft_sampling
        drawing = Drawing(settings.kind, sampling, True, self.noise, settings.store_topk)
        identity = {"weights_digest": _DIGEST, "config_digest": _DIGEST}
        model = random_drafter(self.target.model, self._block)
        drafter = BlockFamily(RANDOM, model, drawing, identity, settings.lanes, 1024)
        drafter.use_native(Way(settings.numerics))
        return drafter


class NoWords:
    """A tokenizer of a vocabulary without words."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def decode(self, tokens: Any, **given: Any) -> str:
        """Nothing."""
        return ""


def random_target(shape: str, device: str, dtype: torch.dtype, **changes: Any) -> Target:
    """A target of a model shape with random weights, without words and without an end of text."""
    model = make_target(shape, device, dtype, **changes)
    identity = {
        "name": f"{shape} with random weights", "revision": None, "weights_digest": _DIGEST,
        "config_digest": _DIGEST, "dtype": str(dtype).removeprefix("torch."), "quantisation": None,
        "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
    }  # fmt: skip
    vocabulary = int(model.config.vocab_size)
    tokenizer = {
        "digest": _DIGEST, "vocab_size": vocabulary, "padded_vocab_size": vocabulary,
        "template_digest": None,
    }  # fmt: skip
    window = int(model.config.max_position_embeddings)
    return Target(
        identity["name"], model, NoWords(vocabulary), identity, tokenizer, frozenset(), window, 1e-1
    )


def random_drafter(target: Any, block: int) -> BlockDrafter:
    """A drafter of the shipped one's kind, as wide as the target: Markov head of rank 8, confidence."""
    last = target.config.num_hidden_layers
    torch.manual_seed(1)
    return make_drafter(
        target,
        block,
        taps=tuple(sorted({min(2, last), last // 4, last // 2, 3 * last // 4, max(last - 2, 1)})),
        markov=Markov("vanilla", 8),
        confidence=Confidence(True),
    )
