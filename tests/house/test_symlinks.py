"""The two symlinked folders, the list of packages, and the error of a copy that lost its symlinks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ("kernels", "schemas")


@pytest.mark.parametrize("name", LINKS)
def test_the_folder_is_a_symlink_without_an_init(name: str) -> None:
    link = ROOT / "dflash" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"
    # an importable `kernels` at the top would shadow Hugging Face's library of that name
    assert not (ROOT / name / "__init__.py").exists()


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inside = {
        ".".join(path.relative_to(ROOT).parts[:-1])
        for path in (ROOT / "dflash").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(listed) == inside | {f"dflash.{name}" for name in LINKS}
    assert listed == sorted(listed)


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("remains", ["text file", "nothing"])
def test_a_copy_without_symlinks_says_so(name: str, remains: str, tmp_path: Path) -> None:
    package = tmp_path / "dflash"
    package.mkdir()
    (package / "__init__.py").write_bytes((ROOT / "dflash" / "__init__.py").read_bytes())
    for link in LINKS:
        if link != name:
            (package / link).mkdir()
        elif remains == "text file":
            (package / link).write_text(f"../{link}")
    done = subprocess.run(
        [sys.executable, "-c", "import dflash"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"ImportError: dflash/{name} should be a symbolic link to the folder ../{name}" in done.stderr


def test_importing_the_package_is_light_and_names_come_when_used() -> None:
    script = (
        "import sys, dflash\n"
        "heavy = {'torch', 'transformers', 'triton', 'pyarrow', 'numpy', 'click'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in dflash.__all__:\n"
        "    assert name in dir(dflash)\n"
        "    getattr(dflash, name)\n"
        "heavy = {'torch', 'transformers', 'triton', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
