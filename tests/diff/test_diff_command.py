"""`dflash diff` as a command: exit codes, grammar, forms, streams."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from drifted import SCHEMA, Requests, edited, head, recording, save
from sample_drafts import digest
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.diff import parse_thresholds
from dflash.errors import DflashError

EVIL = "<script>alert(1)</script> | & \"'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    Recorder(requests=8).write(found / "a.parquet")
    Recorder(requests=8, seed=6).write(found / "b.parquet")
    Recorder(requests=8, length=1).write(found / "short.parquet")
    (found / "text.parquet").write_text("no draft file")
    (found / "cut.parquet").write_bytes((found / "a.parquet").read_bytes()[:-100])
    (found / "empty").mkdir()
    return found


def told(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    arguments = [
        str(folder / word) if word.endswith(".parquet") or word == "empty" else word for word in words
    ]
    code = run(["diff", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_cosine_is_said_to_be_of_fingerprints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (save(tmp_path / f"{name}.parquet", recording()) for name in "ab")
    assert run(["diff", str(a), str(b), "--timing"]) == 0
    assert "cosine and norm are those of their fingerprints" in capsys.readouterr().out


def test_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(folder, capsys, "a.parquet", "a.parquet")[0] == 0
    assert told(folder, capsys, "a.parquet", "b.parquet")[0] == 1


@pytest.mark.parametrize("name", ["missing.parquet", "text.parquet", "cut.parquet", "empty"])
@pytest.mark.parametrize("first", [True, False])
def test_garbage(folder: Path, capsys: pytest.CaptureFixture[str], name: str, first: bool) -> None:
    code, out, err = told(folder, capsys, *((name, "a.parquet") if first else ("a.parquet", name)))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert name in err
    assert len(err.splitlines()) == 1


WRONG = [
    (["--fail-on", "tua:1"], "Did you mean 'tau'?"),
    (["--fail-on", "kl_men:1"], "Did you mean 'kl_mean'?"),
    (["--fail-on", "accept@0:1"], "N >= 1"),
    (["--fail-on", "accept@N:1"], "N >= 1"),
    (["--fail-on", "accept@:1"], "N >= 1"),
    (["--fail-on", "accept@01:1"], "N >= 1"),
    (["--fail-on", "accept:1"], "Did you mean 'accept@N'?"),
    (["--fail-on", "kl_mean:1%"], "give a plain number"),
    (["--fail-on", "tau"], "Expected a threshold"),
    (["--fail-on", "tau:nan"], "Expected a threshold"),
    (["--fail-on", "tau:inf%"], "Expected a threshold"),
    (["--fail-on", "tau:1e999"], "Expected a threshold"),
    (["--fail-on", "tau:--1"], "Expected a threshold"),
    (["--fail-on", "tau:1,"], "Expected a threshold"),
    (["--ignore", "slot_entropi"], "Did you mean 'slot_entropy'?"),
    (["--atol", "nan"], "Expected a tolerance"),
    (["--atol", "inf"], "Expected a tolerance"),
    (["--rtol", "-1"], "Expected a tolerance"),
    (["--rtol", "slot_gap=-inf"], "Expected a tolerance"),
    (["--rtol", "slot_gap="], "Expected a tolerance"),
    (["--atol", "slot_gpa=1"], "Did you mean 'slot_gap'?"),
    (["--atol", "node_token=1"], "a column of floats"),
    (["--json", "--html"], "one form"),
    (["--on", "tokens"], "rounds"),
    (["--limit", "-1"], "--limit"),
    (["-o", "no/such/folder.md"], "no such folder"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_usage(
    folder: Path, in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = told(folder, capsys, "a.parquet", "b.parquet", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert list(in_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("thresholds", "code"),
    [
        ("tau:10%", 1),
        ("tau:-10%", 1),
        ("tau:+10%", 0),
        ("tau:90%", 0),
        ("tau:-3", 0),
        ("tau:-0.1", 1),
        ("accept@1:+0.5", 0),
        ("accept@2:-1%", 1),
        ("accept@9:1", 1),
        ("tokens:0", 0),
        ("kl_mean:1e-3", 0),
        ("same_top1:-1%", 0),
        ("tau:+10%,tokens:0,tau:-1%", 1),
        ("tau:+10%, tokens:0", 0),
    ],
)
def test_thresholds_alone_decide(
    folder: Path, capsys: pytest.CaptureFixture[str], thresholds: str, code: int
) -> None:
    found, out, _ = told(folder, capsys, "a.parquet", "short.parquet", "--json", "--fail-on", thresholds)
    document = json.loads(out)
    assert (found, document["exit_code"]) == (code, code)
    assert document["verdict"] == "different"
    assert any(item["failed"] for item in document["thresholds"]) == bool(code)


def test_thresholds_hold_between_identical_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = "tau:0,accept@1:0%,accept@99:0,kl_mean:0,same_top1:0,tokens:0"
    assert told(folder, capsys, "a.parquet", "a.parquet", "--fail-on", every)[0] == 0


def test_thresholds_have_a_sign_and_a_unit() -> None:
    found = parse_thresholds("tau:-1%,accept@12:+.5,kl_mean:1e-3")
    assert [(one.metric, one.sign, one.amount, one.relative) for one in found] == [
        ("tau", "-", 1.0, True),
        ("accept@12", "+", 0.5, False),
        ("kl_mean", "", 1e-3, False),
    ]
    with pytest.raises(DflashError):
        parse_thresholds("")


def test_json_keeps_its_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["a.parquet", "a.parquet"],
        ["a.parquet", "b.parquet", "--timing"],
        ["b.parquet", "short.parquet"],
    ):
        _, out, _ = told(folder, capsys, *words, "--json", "--fail-on", "tau:-1%")
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(out))


def test_every_section_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(folder, capsys, "a.parquet", "b.parquet", "--timing")
    heads = re.findall(r"^([a-z]+)(?:: .*)?$", out, re.MULTILINE)
    sections = [*SCHEMA["properties"]["sections"]["properties"]]
    assert [head for head in heads if head in sections] == sections


def test_quiet_says_the_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(folder, capsys, "a.parquet", "a.parquet", "-q") == (0, "identical\n", "")
    assert told(folder, capsys, "a.parquet", "short.parquet", "-q") == (1, "different\n", "")


@pytest.mark.parametrize("form", ["json", "md", "html", "txt"])
def test_output(folder: Path, in_folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    name = f"report.{form}"
    words = ["a.parquet", "b.parquet", "-o", name]
    code, out, err = told(folder, capsys, *words)
    assert (code, out) == (1, "")
    assert name in err
    begin = {"json": "{", "md": "## dflash diff", "html": "<!doctype html>", "txt": "d"}[form]
    assert Path(name).read_text().startswith(begin)
    assert [path.name for path in in_folder.iterdir()] == [name]
    assert told(folder, capsys, *words)[0] == 2
    assert told(folder, capsys, *words, "--overwrite", "-q") == (1, "", "")


def test_the_output_is_none_of_the_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "b.parquet").read_bytes()
    words = ["a.parquet", "b.parquet", "-o", "b.parquet", "--overwrite"]
    assert told(folder, capsys, *words)[0] == 2
    assert (folder / "b.parquet").read_bytes() == before


class Page(HTMLParser):
    """Collects tags and links."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in {"src", "href", "action", "data"}]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def evil(tmp_path: Path) -> tuple[Path, Path]:
    """Names and settings that would break out of markup, in everything that is shown of a file."""
    target = head()["target"] | {"name": EVIL}

    def name(found: Requests) -> None:
        for number, rows in enumerate(found.values()):
            rows[0]["request_id"] = f"{EVIL} {number}"

    def drift(found: Requests) -> None:
        found["r1"][1] |= {"bonus_token": 3, "control_state": EVIL}
        found["r0"][1]["slot_gap"] = np.ones(4, np.float32)
        found["r0"][0]["request_info"] = json.dumps({"ordinal": 0, EVIL: EVIL})

    base = edited(recording(), name)
    a = save(tmp_path / "a.parquet", base, target=target)
    return a, save(tmp_path / "b.parquet", edited(base, drift), target=target | {"revision": EVIL})


def test_html_is_self_contained_and_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = evil(tmp_path)
    assert run(["diff", str(a), str(b), "--html", "--timing"]) == 1
    out = capsys.readouterr().out
    page = Page()
    page.feed(out)
    assert page.links == []
    assert set(page.tags) & {"script", "link", "img", "iframe", "object", "a"} == set()
    assert "http" not in out
    assert "url(" not in out
    assert "@import" not in out
    assert EVIL not in out
    assert any(EVIL in words for words in page.words)


def test_markdown_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = evil(tmp_path)
    assert run(["diff", str(a), str(b), "--md"]) == 1
    out = capsys.readouterr().out
    assert "<script>" not in re.sub(r"\\.", "", out)
    cells = [
        (len(re.sub(r"\\.", "", line).split("|")) if line.startswith("|") else 0) for line in out.splitlines()
    ]
    assert any(cells)
    assert all(left == right for left, right in itertools.pairwise(cells) if left and right)


def test_two_quantisations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quantisation first, then the token and its margin, then KL and same top-1, then acceptance."""
    recorder = Recorder(requests=12)
    a = recorder.write(tmp_path / "a.parquet")
    other = Recorder(requests=12)
    other.target = other.target + np.random.default_rng(9).normal(0, 0.4, other.target.shape).astype(
        np.float32
    )
    quantised = other.header() | {
        "target": other.header()["target"] | {"quantisation": {"method": "int8"}, "weights_digest": digest(5)}
    }
    other.header = lambda: quantised  # type: ignore[method-assign]
    b = other.write(tmp_path / "b.parquet")
    assert run(["diff", str(a), str(b)]) == 1
    out = capsys.readouterr().out
    marks = ["The target's quantisation differs: none in A, int8 in B.", "target.quantisation"]
    marks += ["first differing output token", "margin in A", "Same top-1", "KL(A‖B)", "acceptance:"]
    places = [out.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "95 %" in out[places[-1] :]


def test_two_drafters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Recorder(requests=6).write(tmp_path / "a.parquet")
    other = Recorder(requests=6)
    other.drafter = other.target + np.random.default_rng(2).normal(0, 2, other.target.shape).astype(
        np.float32
    )
    drafters = [other.header()["drafters"][0] | {"weights_digest": digest(5)}]
    changed = other.header() | {"drafters": drafters}
    other.header = lambda: changed  # type: ignore[method-assign]
    b = other.write(tmp_path / "b.parquet")
    assert run(["diff", str(a), str(b), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["causes"][0].startswith("The drafter changed (weights_digest) and the target did not")
    assert found["sections"]["tokens"]["status"] == "same"


@pytest.mark.parametrize("more", [{}, {"dtype": "bfloat16"}])
def test_a_quantised_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str]
) -> None:
    """Quantisation is named and priced if nothing else of the drafter changed."""
    a = Recorder(requests=12).write(tmp_path / "a.parquet")
    other = Recorder(requests=12)
    other.drafter = other.target + np.random.default_rng(2).normal(0, 2, other.target.shape).astype(
        np.float32
    )
    quantised = {"quantisation": {"method": "torchao", "bits": 8}, "weights_digest": digest(5), **more}
    changed = other.header() | {"drafters": [other.header()["drafters"][0] | quantised]}
    other.header = lambda: changed  # type: ignore[method-assign]
    b = other.write(tmp_path / "b.parquet")
    assert run(["diff", str(a), str(b), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    if more:
        assert found["causes"][0].startswith("The drafter changed (dtype, quantisation, weights_digest)")
        return
    tau = found["sections"]["acceptance"]["tau"]
    low, high = tau["difference_interval"]
    assert found["causes"][0] == (
        "The drafter's quantisation differs: none in A, torchao with 8 bits in B, and the target is the "
        f"same. What that does to acceptance: tau {tau['a']:.3f} to {tau['b']:.3f}, "
        f"{tau['b'] - tau['a']:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, requests paired)."
    )
    assert tau["a"] != tau["b"]


def test_a_drafter_that_the_header_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Recorder(requests=6).write(tmp_path / "a.parquet")
    other = Recorder(requests=6)
    other.drafter = other.target + np.random.default_rng(2).normal(0, 2, other.target.shape).astype(
        np.float32
    )
    b = other.write(tmp_path / "b.parquet")
    assert run(["diff", str(a), str(b), "--json"]) == 1
    assert "a bug of the drafter" in json.loads(capsys.readouterr().out)["causes"][0]


def test_the_torch_half_is_not_imported(folder: Path) -> None:
    code = (
        "import sys; from dflash.cli.main import run; "
        f"assert run(['diff', {str(folder / 'a.parquet')!r}, {str(folder / 'b.parquet')!r}]) == 1; "
        "sys.exit(str({'torch', 'transformers', 'triton', 'scipy', 'pandas'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7])
def test_equal_digests_do_not_hide_bytes_that_changed(
    folder: Path, capsys: pytest.CaptureFixture[str], place: float
) -> None:
    """A digest in a header says what was written, and no more."""
    body = bytearray((folder / "a.parquet").read_bytes())
    footer = int.from_bytes(body[-8:-4], "little")
    body[int(place * (len(body) - footer))] ^= 1
    (folder / "flipped.parquet").write_bytes(body)
    code, out, err = told(folder, capsys, "a.parquet", "flipped.parquet")
    assert (code, out) == (2, "")
    assert "flipped.parquet" in err
