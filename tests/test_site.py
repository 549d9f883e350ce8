"""The documentation site: it builds without a warning, no link is broken, and every page fits every screen."""

from __future__ import annotations

import functools
import html.parser
import http.client
import http.server
import importlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from harness.browser import look
from help_texts import list_parsers

pytest.importorskip("sphinx", reason="Sphinx is not installed: `make test-docs` builds and opens the site")
from sphinx.util.inventory import InventoryFile

pytestmark = pytest.mark.timeout(1800)  # the build runs every example, and the browser opens every page
REPOSITORY = Path(__file__).parents[1]
HOME = "docs/index.html"
LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "object": "data", "iframe": "src"}


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the places in it that links can name."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.places |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(LOADED.get(tag)) and attributes.get("rel") != "canonical":
            self.loads.append(attributes[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "-c", "docs", "-d", folder / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, ".", folder / "html"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site):
    found = {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}
    assert HOME in found
    return found


@pytest.fixture(scope="module")
def address(site):
    """Where a server on this machine offers the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("docstring", "marked"),
    [
        ("The map is\n\n    p = |q_|.\n\nIt is |p|.", "The map is\n\n::\n\n    p = |q_|.\n\nIt is \\|p\\|."),
        ("Args:\n    p: Of `y|x`, see y_.", "Args:\n    p: Of `y|x`, see y\\_."),
        ("Example:\n    >>> fit().classes_\n    |a_|\n", "Example:\n    >>> fit().classes_\n    |a_|"),
        (
            "| a | b |\n|---|---|\n| 1 | 2 |",
            ".. list-table::\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n     - 2",
        ),
    ],
    ids=["formula", "arguments", "example", "table"],
)
def test_docstrings_become_restructured_text(docstring, marked, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "extensions"))
    mark_up = importlib.import_module("docstring_blocks").mark_up
    assert mark_up(docstring.splitlines()) == marked.splitlines()


def test_no_link_is_broken(site, pages):
    broken, checked = [], 0
    for name, page in pages.items():
        for link in page.links:
            target, place = urldefrag(urljoin(f"http://site/{name}", link))
            if urlsplit(target).netloc != "site":
                continue
            checked += 1
            path = unquote(urlsplit(target).path).lstrip("/")
            if not (site / path).is_file() or (place and path in pages and unquote(place) not in pages[path].places):
                broken.append((name, link))
    assert broken == []
    assert checked > 10 * len(pages)


def test_links_to_other_hosts_answer(pages):
    """A page that its host does not know is a broken link; a host that cannot be reached from here says nothing."""
    targets = {urldefrag(link).url for page in pages.values() for link in page.links}
    targets = sorted(target for target in targets if urlsplit(target).scheme in ("http", "https"))
    assert any(urlsplit(target).netloc == "github.com" for target in targets)
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(targets, pool.map(ask_for, targets), strict=True))
    assert [target for target, answer in answers.items() if answer == "unknown"] == []
    silent = sorted({urlsplit(target).netloc for target, answer in answers.items() if answer == "no answer"})
    if silent:
        pytest.skip(f"cannot be reached from here: {', '.join(silent)}")


def ask_for(target):
    request = urllib.request.Request(target, headers={"User-Agent": "Mozilla/5.0"})  # some hosts refuse Python's own
    try:
        with urllib.request.urlopen(request, timeout=30):
            return "known"
    except urllib.error.HTTPError as error:
        return "unknown" if error.code in (404, 410) else "known"  # others say that a host is busy, or wants a login
    except (OSError, http.client.HTTPException):
        return "no answer"


def test_what_a_host_answers(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Host(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path[1:]))
            self.end_headers()

        def log_message(self, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host)
    with server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        answers = {status: ask_for(f"{address}{status}") for status in (200, 404, 410, 429)}
        server.shutdown()
    assert answers == {200: "known", 404: "unknown", 410: "unknown", 429: "known"}
    assert ask_for(address) == "no answer"


def test_pages_load_nothing_from_other_hosts(pages):
    loads = {(name, load) for name, page in pages.items() for load in page.loads}
    assert {load for load in loads if urlsplit(load[1]).scheme not in ("", "data")} == set()


def test_the_root_leads_home(site):
    assert f"url={HOME}" in (site / "index.html").read_text(encoding="utf-8")


ROOMS = [line.strip() for line in (REPOSITORY / "docs/reference/api.md").read_text(encoding="utf-8").splitlines()]
ROOMS = [line for line in ROOMS if line == "refocal" or line.startswith("refocal.")]


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(site, room):
    names = importlib.import_module(room).__all__
    described = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    listed = {name for kind, entries in described.items() if kind.startswith("py:") for name in entries}
    assert names
    assert {f"{room}.{name}" for name in names} - listed == set()


def test_every_package_that_users_import_is_in_the_reference():
    package = REPOSITORY / "src" / "refocal"
    public = {
        ".".join(path.parent.relative_to(package.parent).parts)
        for path in package.rglob("__init__.py")
        if "\n__all__ = " in path.read_text(encoding="utf-8")
    }
    assert public - set(ROOMS) == set()


@pytest.mark.parametrize("package", ["refocal", "refocal_lab"])
def test_every_command_and_option_is_in_the_reference(site, package):
    text = (site / "docs/reference/command-line.html").read_text(encoding="utf-8")
    parser = importlib.import_module(f"{package}.cli.parser").build_parser()
    for words, command in list_parsers(parser):
        assert f'id="{words.replace(" ", "-")}"' in text
        options = {option for action in command._actions for option in action.option_strings if option != "-h"}
        assert {option for option in options if option not in text} == set()


WIDTHS = (1280, 768, 390)


def test_every_page_fits_every_screen_in_both_themes(browser, address, pages):
    """No page scrolls sideways, every figure is there, and nothing is written to the console."""
    wrong = []
    for name in pages:
        if name == "index.html":
            continue  # leads to another page at once
        for scheme in ("light", "dark"):
            look(browser, width=WIDTHS[0], scheme=scheme)
            browser.get(address + name)
            for width in WIDTHS:
                look(browser, width=width, scheme=scheme)
                found = browser.execute_script(
                    "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
                )
                wrong += [(name, scheme, width, "scrolls sideways")] if found else []
            missing = browser.execute_script(
                "return [...document.images].filter(image => image.loading != 'lazy' && !image.naturalWidth).length"
            )
            wrong += [(name, scheme, "figures are missing")] if missing else []
            wrong += [(name, scheme, entry["message"]) for entry in browser.get_log("browser")]
    assert wrong == []


def test_themes_differ_and_figures_stay_on_white(browser, address):
    colors = {}
    for scheme in ("light", "dark"):
        look(browser, scheme=scheme)
        browser.get(address + HOME)
        colors[scheme] = browser.execute_script(
            "return ['body', '.content img'].map(each => document.querySelector(each))"
            ".map(each => getComputedStyle(each).backgroundColor)"
        )
    light, dark = colors["light"], colors["dark"]
    assert light[0] == "rgb(255, 255, 255)" != dark[0]
    assert dark[1] == "rgb(255, 255, 255)"


def test_search_finds_a_page(browser, address):
    look(browser)
    browser.get(f"{address}search.html?q=temperature")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := browser.execute_script("return document.querySelectorAll('#search-results li a').length"):
            break
        time.sleep(0.1)
    assert found
