"""Load a target: the default model, a hub id, a local folder or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers

from dflash.target.default import DEFAULT_NAME, Progress
from dflash.target.fingerprint import model_identity, tokenizer_identity
from dflash.target.quantise import Quantisation, quantise
from dflash.target.source import find_source
from dflash.target.support import check_config, self_test, tie_tolerance

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target model with its tokenizer and identity.

    `identity` and `tokenizer_identity` are the header's entries; `eos` the tokens that end an answer;
    `window` the longest prompt plus answer; `tie_tolerance` in raw logits.
    """

    name: str
    model: Any
    tokenizer: Any
    identity: dict[str, Any]
    tokenizer_identity: dict[str, Any]
    eos: frozenset[int]
    window: int
    tie_tolerance: float

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return next(self.model.parameters()).dtype


def load_target(
    name: str = DEFAULT_NAME,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    quantisation: Quantisation = "none",
    trust_cache: bool = True,
    progress: Progress = lambda stage, fraction: None,
) -> Target:
    """Load, check and fingerprint a target.

    Args:
        name: `default`'s name, a folder, a `.gguf` file, or a hub id.
        device: A torch device.
        dtype: float32, bfloat16 or float16; None means float32 on a CPU and bfloat16 elsewhere.
        quantisation: Weight-only quantisation through torchao.
        trust_cache: Reuse the digest stored beside the weights while size and time agree.
        progress: Told of the stages of a download and conversion.

    Raises:
        NoSuchModel: No such folder, file or hub id.
        ModelUnreadable: The weights or the configuration cannot be read.
        NoTokenizer: The model comes without a tokenizer.
        UnsupportedArchitecture: The engine cannot score it as trees.
        SelfTestFailed: It can be run, but trees come out wrong.
    """
    transformers.utils.logging.disable_progress_bar()
    source = find_source(name, progress)
    name = source.name
    kind = DTYPES[dtype] if dtype else (torch.float32 if device == "cpu" else torch.bfloat16)
    check_config(name, source.config())
    model, tokenizer = source.model(kind).eval(), source.tokenizer()
    model.to(device).requires_grad_(False)
    identity = model_identity(name, model, source.digest_folder, trust_cache=trust_cache)
    identity |= source.quantisation()
    if quantisation != "none":
        quantised = quantise(model, quantisation)
        model = quantised.model
        identity |= {"quantisation": quantised.parameters, "weights_digest": quantised.weights_digest}
    measured = self_test(name, model)
    return Target(
        name=name,
        model=model,
        tokenizer=tokenizer,
        identity=identity,
        tokenizer_identity=tokenizer_identity(tokenizer, int(model.config.get_text_config().vocab_size)),
        eos=_eos(model, tokenizer),
        window=_window(model),
        tie_tolerance=tie_tolerance(model, measured),
    )


def _eos(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config else None
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        return frozenset()
    return frozenset([configured] if isinstance(configured, int) else configured)


def _window(model: Any) -> int:
    text = model.config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2**31)
