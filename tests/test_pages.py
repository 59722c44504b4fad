"""The pages hold what they say: their Python runs, their commands parse, their links lead somewhere.

A page's Python blocks share one namespace and run in order in a new folder that holds ``photos/{cat,dog}/*.png`` and
``cat.png``, so a page may speak of a user's photographs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cyclopts import App, CycloptsError
from PIL import Image

from vitrail.cli import build_app
from vitrail.config.schema import list_fields

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in ROOT.glob("docs/**/*.md") if "_build" not in page.parts),
    *ROOT.glob("benchmarks/*.md"),
]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
CELL = "{code-cell}"  # of a tutorial, which runs where the site is built
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    """(line, code) of the fenced blocks in one of the languages; line is that of the first line of code."""
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2]) for found in FENCE.finditer(text) if found[1] in languages
    ]


def run_python(text: str, name: str) -> None:
    namespace = {"__name__": "page"}
    for line, code in blocks(text, "python"):
        # blank lines in front, so that a traceback names the line of the page
        exec(compile("\n" * (line - 1) + code, name, "exec"), namespace)


def commands(text: str) -> list[list[str]]:
    """The words of every ``vitrail ...`` line of the shell blocks and cells, up to a pipe or a redirection."""
    found = []
    for line in shell_lines(text):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["vitrail"]:
            ends = {"|", ">", ">>", "&&", ";", "2>", "2>&1"}
            stop = next((place for place, word in enumerate(words) if word in ends), None)
            found.append(words[1:stop])
    return found


def shell_lines(text: str) -> list[str]:
    """The lines of shell blocks, of cells that start with ``%%bash``, and those of other cells behind ``!``."""
    lines = []
    for _, code in blocks(text, "console", "bash", "sh", "shell"):
        lines += code.replace("\\\n", " ").splitlines()
    for _, code in blocks(text, CELL):
        cell = code.replace("\\\n", " ").splitlines()
        is_shell = "%%bash" in cell
        lines += [line.removeprefix("!") for line in cell if is_shell or line.startswith("!")]
    return lines


def parse(words: list[str], app: App) -> None:
    app.parse_args(words, exit_on_error=False, print_error=False)


def anchors(text: str) -> set[str]:
    """What ``#...`` may name in a page, as the usual hosts spell it."""
    headings = re.findall(r"^#+ (.+?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.fixture
def desk(tmp_path, monkeypatch, registries) -> Path:
    """The folder a page's code runs in."""
    generator = np.random.default_rng(0)
    for name, tone in {"cat": (200, 120, 60), "dog": (60, 90, 200)}.items():
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = np.clip(generator.normal(tone, 30, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}.png")
    (tmp_path / "photos/cat/00.png").rename(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text(), "python")], ids=named)
def test_the_python_of_a_page_runs(page, desk):
    run_python(page.read_text(), str(page))


def count_lines(code: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code.splitlines())


def test_the_lengths_of_examples_are_as_counted():
    page, theirs = (ROOT / "docs/your-own.md").read_text(), (ROOT / "benchmarks/your_own.py").read_text()
    ours = {each.splitlines()[0]: found[0][1] for each in page.split("\n## ")[1:] if (found := blocks(each, "python"))}
    trainer = {each.splitlines()[0]: each.partition("\n")[2] for each in theirs.split("\n# --- ")[1:]}
    shared = next(count_lines(code) for name, code in trainer.items() if name.startswith("shared"))
    rows = re.findall(r"^\| ([A-Z].+?) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    assert [(name, int(here), int(there)) for name, here, there in rows] == [
        (name, count_lines(ours[name]), count_lines(trainer[name])) for name, *_ in rows
    ]
    assert f"its share of {shared} lines" in page
    assert max(count_lines(code) for code in ours.values()) <= 25


def test_the_commands_of_every_page_parse():
    wrong, app = {}, build_app()
    for page in PAGES:
        for words in commands(page.read_text()):
            try:
                parse(words, app)
            except CycloptsError as error:
                wrong[named(page), shlex.join(words)] = str(error)
    assert not wrong


def test_the_settings_that_pages_name_exist():
    """Changes of a model or an objective are checked when these are built."""
    keys = {(named(page), key) for page in PAGES for key in re.findall(r"--set [\"']?([\w.]+)=", page.read_text())}
    assert keys
    known, built = {*list_fields(), "group.key"}, ("model.changes.", "objective.changes.")
    assert not [each for each in sorted(keys) if each[1] not in known and not each[1].startswith(built)]


def test_the_links_of_every_page_lead_somewhere():
    assert not [(named(page), link) for page in PAGES for link in broken_links(page)]


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_an_example_runs(example, desk):
    subprocess.run([sys.executable, example], check=True)


def test_the_readme_shows_a_command_and_some_python():
    text = (ROOT / "README.md").read_text()
    assert commands(text)
    assert blocks(text, "python")


# The checkers themselves, on small pages.


def test_blocks_share_a_namespace_and_a_fault_names_its_line():
    run_python("```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n", "page")
    with pytest.raises(ZeroDivisionError) as fault:
        run_python("title\n\n```python\n1 / 0\n```\n", "page")
    assert fault.traceback[-1].lineno + 1 == 4


def test_a_command_is_read_as_the_shell_would():
    page = (
        "```console\n$ vitrail train 'my data' \\\n    --lr 0.1  # note\nls\nvitrail predict latest x.png | head\n```\n"
    )
    assert commands(page) == [["train", "my data", "--lr", "0.1"], ["predict", "latest", "x.png"]]
    assert commands("```python\nvitrail train\n```\n") == []


def test_tutorial_commands_come_from_shell_cells():
    page = (
        "```{code-cell} ipython3\nx = 1\n!vitrail data check photos/\n```\n"
        "```{code-cell}\n:tags: [hide-output]\n%%bash\nvitrail models \\\n  --size 384 2>&1\n```\n"
        "```{code-cell}\nvitrail = 'not a command'\n```\n"
    )
    assert commands(page) == [["data", "check", "photos/"], ["models", "--size", "384"]]


def test_a_wrong_command_does_not_parse():
    for line in ("trian digits", "train digits --no-such-flag", "train digits --lr x"):
        with pytest.raises(CycloptsError):
            parse(line.split(), build_app())


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# A title, `here`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md) [b](none.md) [c](#top) [d](#none) [e](other.md#a-title-here) [f](https://x.org)"
    )
    assert broken_links(page) == ["none.md", "#none"]
