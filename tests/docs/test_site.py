"""The built site: complete, whole, and without anything from elsewhere. `make site` builds it and runs this."""

from __future__ import annotations

import inspect
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import vitrail
from tests.serving.browser.page import CHROMIUM
from tests.test_pages import ROOT
from vitrail import errors

VERBS = [name for name, home in vitrail._HOMES.items() if home.startswith("vitrail.verbs.")]

SITE = ROOT / "docs/_build/html"
DOCS = ROOT / "docs"
SOURCES = {path.relative_to(DOCS) for path in DOCS.rglob("*.md") if "_build" not in path.parts}
SOURCES -= {Path("decisions.md")}  # the log is for whoever changes vitrail
PAGES = sorted(SITE.rglob("*.html"))
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
LOADED = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect"}  # kinds of <link>
WIDTHS = (390, 1200, 1280, 1440)
# what reaches beyond the screen without being part of something that scrolls by itself, as tables and code do
BEYOND = """() => {
    const scrolls = each => each.tagName !== "ARTICLE" && (
        ["auto", "scroll"].includes(getComputedStyle(each).overflowX) || scrolls(each.parentElement))
    const beyond = [...document.querySelectorAll("article *")].filter(
        each => each.getBoundingClientRect().right > innerWidth + 1)
    return beyond.filter(each => !scrolls(each)).map(each => each.outerHTML.slice(0, 80))
}"""

pytestmark = pytest.mark.site


class Page(HTMLParser):
    """What a page loads, where it leads, and what can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and (tag != "link" or LOADED & set(given.get("rel", "").split())):
            self.loads.append(given.get(LOADS[tag], ""))


@pytest.fixture(scope="module")
def read() -> dict[Path, Page]:
    return {page: Page(page.read_text()) for page in PAGES}


def broken(page: Path, link: str, read: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
    if target not in read:
        return not target.exists()
    # furo leads to the top of a page with an empty fragment
    return bool(parts.fragment) and unquote(parts.fragment) not in read[target].ids


def test_the_site_has_its_pages():
    names = {str(page.relative_to(SITE)) for page in PAGES}
    assert {"index.html", "search.html", "genindex.html"} <= names
    assert {str(source.with_suffix(".html")) for source in SOURCES} <= names
    assert "decisions.html" not in names


def test_assistants_get_a_list_of_all_pages_and_commands_and_the_pages_as_markdown():
    text, whole = ((SITE / name).read_text() for name in ("llms.txt", "llms-full.txt"))
    title, blank, summary, *_ = text.splitlines()
    assert (title, blank, summary[:9]) == ("# vitrail", "", "> Train, ")
    assert "://" not in text
    links = re.findall(r"^- \[(.+)\]\((.+)\): .+$", text, re.MULTILINE)
    assert len(links) == text.count("\n- ")
    commands = [(name, link) for name, link in links if "#" in link]
    assert {name for name, _ in commands} >= {"vitrail train", "vitrail data check"}
    headings = (SITE / "reference/command-line.md").read_text().splitlines()
    assert [name for name, _ in commands if not any(line.endswith(f"# {name}") for line in headings)] == []
    assert sorted(link for _, link in links if link.endswith(".md")) == sorted(map(str, SOURCES))
    for source in SOURCES:
        page = (SITE / source).read_text()
        assert page in whole
        assert page.startswith("# "), source
        assert not re.search(r"^```\{", page, re.MULTILINE), source
    assert "| `optim.lr` |" in whole and "### `vitrail.train`" in whole


def test_no_page_and_no_style_sheet_loads_anything_from_elsewhere(read):
    loads = {
        (page.relative_to(SITE), load)
        for page in PAGES
        for load in read[page].loads
        if urlsplit(load).netloc or load.startswith(("http:", "https:", "//"))
    }
    sheets = sorted(SITE.rglob("*.css"))
    assert sheets
    loads |= {
        (sheet.relative_to(SITE), found[0])
        for sheet in sheets
        if (found := re.search(r"@import|url\(\s*[\"']?(https?:)?//", sheet.read_text()))
    }
    assert not loads


def test_the_links_of_every_page_lead_somewhere(read):
    assert not [
        (page.relative_to(SITE), link) for page in PAGES for link in read[page].links if broken(page, link, read)
    ]


def test_every_public_name_and_error_is_documented(read):
    ids = set().union(*(page.ids for page in read.values()))
    found = {f"vitrail.{name}" for name in vitrail.__all__}
    found |= {
        f"vitrail.errors.{name}"
        for name in vars(errors)
        if name.endswith("Error") or name in ("Preempted", "Interrupted")
    }
    assert found <= ids


def test_help_an_editor_and_the_site_show_the_same_options():
    text = "".join(page.read_text() for page in PAGES if "python" in page.parts)
    for name in VERBS:
        verb = getattr(vitrail, name)
        ours = [*inspect.signature(verb).parameters]
        documented = inspect.getdoc(verb).partition("Args:\n")[2].partition("\n\n")[0]
        assert [*re.findall(r"^    (\w+): ", documented, re.MULTILINE)] == ours, name
        entry, _, below = text.partition(f'id="vitrail.{name}"')[2].partition("</dt>")
        shown = re.findall(r'<em class="sig-param"><span class="(?:n|o)"><span class="pre">\**(\w+)</span>', entry)
        assert [each for each in shown if each != "options"] == [each for each in ours if each in shown], name
        listed = re.findall(r"<strong>(\w+)</strong>", below.partition("</dl>")[0])
        assert listed[: len(ours)] == ours, name
        assert "Annotated" not in entry, name


def test_no_docstring_has_kept_its_markup():
    left = re.compile(r"<\w+>|&lt;\w+&gt;|:py:|``|~\w+\.")
    text = {page: re.sub(r"<[^>]+>", "", page.read_text()) for page in PAGES if "python" in page.parts}
    assert text
    assert [(page.name, found[0]) for page, words in text.items() if (found := left.search(words))] == []


def test_every_tutorial_was_run_and_is_offered_as_a_notebook():
    ran = Path(os.environ.get("VITRAIL_TEST_DATA") or "nowhere").is_dir()
    sources = sorted((ROOT / "docs/tutorials").glob("[!i]*.md"))
    assert sources
    for source in sources:
        page = SITE / "tutorials" / f"{source.stem}.html"
        (link,) = re.findall(r'href="([^"]+\.ipynb)"', page.read_text())
        cells = json.loads((page.parent / link).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert len(code) == source.read_text().count("```{code-cell}"), source.stem
        assert not any(cell["outputs"] for cell in code), source.stem
        assert ("cell_output" in page.read_text()) == ran, source.stem
        assert ("built without running it" in page.read_text()) != ran, source.stem


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_from_a_disk_pages_fit_the_screen_and_can_be_searched():
    from playwright.sync_api import sync_playwright

    asked, wrong = set(), []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("request", lambda request: asked.add(request.url))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        for page in PAGES:
            tab.goto(page.as_uri())
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 900})
                wrong += [f"{page.relative_to(SITE)} at {width}: {each}" for each in tab.evaluate(BEYOND)]
        tab.goto((SITE / "search.html").as_uri() + "?q=visualize_attention")
        tab.locator("#search-results .search a").first.wait_for()
        found = tab.locator("#search-results .search a").evaluate_all("links => links.map(link => link.href)")
        browser.close()
    assert any("reference/python/inspecting.html" in link for link in found)
    assert not wrong
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data"}
