"""Wheel, sdist, editable install and repository root all run `dflash`, beside transformers and `kernels`."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted(path.name for path in (ROOT / "kernels").glob("*.py"))
SCHEMAS = sorted(path.name for path in (ROOT / "schemas").iterdir() if path.suffix in {".json", ".md"})

PROBE = """
import importlib.resources, pathlib, sys, dflash, dflash.kernels
kernels = sorted(p.name for p in pathlib.Path(list(dflash.kernels.__path__)[0]).glob("*.py"))
schemas = sorted(p.name for p in importlib.resources.files("dflash.schemas").iterdir() if "." in p.name[1:])
print(pathlib.Path(dflash.__file__).resolve().parent, *kernels, *schemas, sep="\\n")
"""


def run(command: list[object], cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository, symlinks kept, without what was built."""
    folder = tmp_path_factory.mktemp("clone") / "repository"
    ignored = shutil.ignore_patterns(
        *(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "demo")
    )
    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def built(copy: Path) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy], cwd=copy)
    return copy / "dist"


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The interpreter of a new environment: it sees our dependencies, but no dflash."""
    venv.create(tmp_path / "env", with_pip=False)
    (found,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # a path file does not run the path files of what it adds, so an editable dflash stays unseen
    (found / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return tmp_path / "env" / "bin" / "python"


def check(python: Path, cwd: Path, home: Path) -> None:
    """The import finds every file and the command runs; `home` is where the package must lie."""
    lines = run([python, "-c", PROBE], cwd=cwd).splitlines()
    assert Path(lines[0]).is_relative_to(home)
    assert lines[1:] == [*KERNELS, *SCHEMAS]
    assert run([python, "-m", "dflash", "--version"], cwd=cwd).startswith("dflash ")


@pytest.mark.slow
def test_what_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dflash", "dflash_toolkit"}
    inside = {name.removeprefix("dflash/") for name in names}
    assert {
        "py.typed",
        *(f"kernels/{name}" for name in KERNELS),
        *(f"schemas/{name}" for name in SCHEMAS),
    } <= inside
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


@pytest.mark.slow
def test_what_is_in_the_sdist(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {"/".join(member.name.split("/")[1:]) for member in archive if member.isfile()}
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= names
    assert {f"dflash/schemas/{name}" for name in SCHEMAS} <= names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_installed_from_a_file(kind: str, built: Path, fresh: Path, tmp_path: Path) -> None:
    (archive,) = built.glob(kind)
    run(
        [fresh, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", archive],
        cwd=tmp_path,
    )
    check(fresh, tmp_path, home=fresh.parents[1])
    assert run([fresh.parent / "dflash", "--version"], cwd=tmp_path).startswith("dflash ")


@pytest.mark.slow
def test_installed_in_place(copy: Path, fresh: Path, tmp_path: Path) -> None:
    run(
        [fresh, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-e", copy],
        cwd=tmp_path,
    )
    check(fresh, tmp_path, home=copy)
    check(fresh, copy, home=copy)
    assert run([fresh.parent / "dflash", "--version"], cwd=tmp_path).startswith("dflash ")


@pytest.mark.slow
def test_run_from_the_repository_without_an_installation(copy: Path, fresh: Path) -> None:
    check(fresh, copy, home=copy)


@pytest.mark.slow
@pytest.mark.network
def test_transformers_finds_hugging_faces_kernels_from_the_repository(copy: Path, fresh: Path) -> None:
    limits = (
        "from transformers.utils import import_utils as utils\n"
        "print(utils.KERNELS_MIN_VERSION, utils.KERNELS_MAX_VERSION)\n"
    )
    low, high = run([fresh, "-c", limits], cwd=copy).split()
    install = [fresh, "-m", "pip", "install", "--quiet", "--no-deps"]
    fits = subprocess.run([*map(str, install), f"kernels>={low},<{high}"], capture_output=True, check=False)
    if fits.returncode:
        # transformers leaves any other version alone, but the name must still be Hugging Face's
        run([*install, "kernels"], cwd=copy)
    script = (
        "import kernels, transformers.integrations.hub_kernels\n"
        "from transformers import AutoModelForCausalLM, LlamaForCausalLM\n"
        "import dflash.kernels\n"
        "print(kernels.__file__)\n"
    )
    assert Path(run([fresh, "-c", script], cwd=copy).strip()).is_relative_to(fresh.parents[1])
