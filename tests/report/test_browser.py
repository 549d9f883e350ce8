"""The page in a real browser: headless Chromium, opened from disk."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from importlib import resources

import numpy as np
import pytest

import refocal
import sample
from harness.browser import look
from refocal import demo
from refocal.maps.posterior import posterior_from_logits
from refocal.report.decision_tables import describe_changed, describe_threshold
from refocal.report.live import measure_rows
from refocal.report.record import Slider

selenium = pytest.importorskip("selenium", reason="selenium, which drives the browser, is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402


@pytest.fixture(scope="module")
def report():
    return sample.sample_report(600)


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    return saved(report, tmp_path_factory.mktemp("page"))


@pytest.fixture
def page(browser, address):
    """The page, freshly opened on a desktop. Any output on the console fails the test."""
    look(browser)
    browser.get(address)
    browser.get_log("browser")
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []


def saved(report, folder):
    report.save(folder / "report.html")
    return (folder / "report.html").as_uri()


def find(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def column(browser, table, index):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(r => r.cells[arguments[1]].textContent)",
        table,
        index,
    )


def enter(browser, selector, value):
    """Type a number as a person would."""
    box = find(browser, selector)
    box.send_keys(Keys.CONTROL + "a")
    box.send_keys(value)


def now(browser, gamma, temperature):
    """Wait until the page has recomputed for gamma and T, and return its numbers, unrounded."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        at, *values = browser.execute_script(
            "return [document.getElementById('now-row').dataset.at, ...['ece', 'nll', 'error', 'confidence']"
            ".map(key => parseFloat(document.getElementById('now-' + key).dataset.value))]"
        )
        if at is not None and np.allclose([float(part) for part in at.split()], (gamma, temperature), rtol=1e-12):
            return values
        time.sleep(0.02)
    pytest.fail(f"the page stands at {at}, not at {gamma} {temperature}")


def test_opens_from_disk_and_sends_no_request(browser, address):
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(address)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if url not in {address, "data:,"}] == []


def test_the_policy_blocks_requests(browser, address):
    browser.get(address)
    blocked = browser.execute_async_script("""
        const done = arguments[0], seen = [];
        document.addEventListener("securitypolicyviolation", (event) => {
            seen.push(event.effectiveDirective);
            if (seen.length === 3) done(seen);
        });
        fetch("http://localhost:9/").catch(() => {});
        document.body.append(Object.assign(new Image(), { src: "http://localhost:9/x.png" }));
        const script = document.createElement("script");
        script.textContent = "window.injected = 1";
        document.body.append(script);
    """)
    assert sorted(blocked) == ["connect-src", "img-src", "script-src-elem"]
    assert browser.execute_script("return window.injected === undefined")
    browser.get_log("browser")


@pytest.mark.parametrize("index", range(4))
def test_script_in_a_user_string_does_not_run_and_shows_as_text(browser, report, tmp_path, index):
    string = sample.NASTY[index]
    browser.get(saved(sample.poisoned(report, string), tmp_path))
    Select(find(browser, "#class")).select_by_index(1)
    assert browser.execute_script("return window.injected === undefined")
    assert browser.get_log("browser") == []
    assert find(browser, "h1").text == string
    assert browser.title == f"{string}: calibration report"
    assert find(browser, "#class option").get_property("textContent") == string
    assert browser.execute_script("return document.getElementById('class-now').textContent") == string
    assert string in browser.execute_script("return document.getElementById('class-before-title').textContent")
    for selector in ("#methods tbody th bdi", "#changed tbody bdi", ".meta bdi", "#reliability figcaption bdi"):
        assert find(browser, selector).text == string
    assert string in find(browser, "footer").text


SETTINGS = [("0", "1"), ("2.5", "0.7"), ("-0.9", "0.1"), ("-0.5", "4"), ("10", "0.1"), ("10", "10"), ("0.001", "1.7")]


def test_numbers_agree_with_python(page, report):
    for gamma, temperature in SETTINGS:
        enter(page, "#gamma-number", gamma)
        enter(page, "#temperature-number", temperature)
        expected = measure_rows(report.slider, gamma=float(gamma), temperature=float(temperature))
        shown = now(page, float(gamma), float(temperature))
        np.testing.assert_allclose(
            shown, [expected.ece, expected.nll, expected.error, expected.confidence], rtol=1e-9, atol=1e-12
        )
        assert find(page, "#now-ece").text == f"{100 * expected.ece:.2f}%"


def test_large_logits_and_masked_classes_agree_with_python(browser, report, tmp_path):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(400, 5)) * np.logspace(-3, 3, 400)[:, None]
    logits[::7, 1] = -np.inf
    labels = rng.choice([0, 2, 3, 4], size=400)
    slider = Slider.pack(logits, labels, gamma=1.0, temperature=1.0)
    browser.get(saved(dataclasses.replace(report, slider=slider), tmp_path))
    for gamma, temperature in (("-0.9", "0.1"), ("10", "0.1"), ("3", "1")):
        enter(browser, "#gamma-number", gamma)
        enter(browser, "#temperature-number", temperature)
        expected = measure_rows(slider, gamma=float(gamma), temperature=float(temperature))
        shown = now(browser, float(gamma), float(temperature))
        np.testing.assert_allclose(shown, [expected.ece, expected.nll, expected.error, expected.confidence], rtol=1e-9)
    assert browser.get_log("browser") == []


def test_every_probability_agrees_with_python(browser):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(60, 4)) * np.logspace(-2, 2.5, 60)[:, None]
    rows[0] = 0.0
    rows[1, 1:] = -np.inf
    rows[2, :2] = 7.0, 7.0
    source = resources.files("refocal.report").joinpath("assets/psi.js").read_text(encoding="utf-8")
    browser.get("about:blank")
    for gamma in (-0.9, -0.3, 0.0, 0.5, 3.0, 10.0):
        for temperature in (0.1, 1.0, 10.0):
            shown = browser.execute_script(
                source + "const [rows, gamma, T] = arguments; return rows.map((row) => {"
                "  const z = row.map((v) => v === null ? -Infinity : v), out = new Float64Array(z.length);"
                "  logPosterior(z, 0, z.length, gamma, T, out); return [...out].map(Math.exp); });",
                [[None if np.isinf(value) else value for value in row] for row in rows.tolist()],
                gamma,
                temperature,
            )
            expected = posterior_from_logits(rows / temperature, gamma=gamma)
            np.testing.assert_allclose(shown, expected, rtol=1e-9, atol=1e-300)


def test_sliders_move_and_reset_goes_back_to_the_fit(page, report):
    assert not find(page, "#reset").is_enabled()
    fitted = column(page, ".live-table", 1)[1]
    find(page, "#gamma").send_keys(Keys.ARROW_RIGHT)
    expected = measure_rows(report.slider, gamma=3.01, temperature=1.2)
    np.testing.assert_allclose(now(page, 3.01, 1.2)[:2], [expected.ece, expected.nll], rtol=1e-9)
    assert find(page, "#gamma-number").get_property("value") == "3.01"
    assert find(page, "#gamma").get_attribute("aria-valuetext") == "3.01"
    find(page, "#temperature").send_keys(Keys.END)
    expected = measure_rows(report.slider, gamma=3.01, temperature=10.0)
    np.testing.assert_allclose(now(page, 3.01, 10.0)[:2], [expected.ece, expected.nll], rtol=1e-9)
    find(page, "#temperature").send_keys(Keys.HOME)
    now(page, 3.01, 0.1)
    dots = len(page.find_elements(By.CSS_SELECTOR, "#live circle"))
    assert dots == len(measure_rows(report.slider, gamma=3.01, temperature=0.1).diagram.count)
    assert find(page, "#map .now").get_attribute("d") != find(page, "#map .fitted").get_attribute("d")
    find(page, "#reset").click()
    now(page, 3.0, 1.2)
    assert find(page, "#now-ece").text == fitted
    assert find(page, "#gamma-number").get_property("value") == "3"
    assert find(page, "#temperature-number").get_property("value") == "1.2"
    assert not find(page, "#reset").is_enabled()
    assert page.switch_to.active_element.get_attribute("id") == "gamma"


def test_redrawn_charts_lie_where_python_drew_them(page):
    """After a change and a reset, the script draws the same shapes as Python."""
    selector = "return [...document.querySelectorAll('#live .shapes *, #map .now')].map(e => e.outerHTML).join('')"
    before = page.execute_script(selector)
    description = page.execute_script("return document.getElementById('live-desc').textContent")
    enter(page, "#gamma-number", "1")
    now(page, 1.0, 1.2)
    find(page, "#reset").click()
    now(page, 3.0, 1.2)
    numbers = [
        np.array([float(part) for part in re.findall(r"[-\d.]*\d", text.replace(",", ""))])
        for text in (before, page.execute_script(selector))
    ]
    np.testing.assert_allclose(*numbers, atol=0.1001)
    assert page.execute_script("return document.getElementById('live-desc').textContent") == description


@pytest.mark.parametrize("value", ["11", "-1", ""])
def test_a_number_out_of_range_is_refused_in_words(page, value):
    enter(page, "#gamma-number", Keys.DELETE if value == "" else value)
    assert find(page, "#gamma-number").get_attribute("aria-invalid") == "true"
    assert find(page, "#gamma-problem").text == "Enter a number from -0.9 to 10"
    assert find(page, "#now-where").text == "γ = 3, T = 1.2" or value == "11"
    enter(page, "#gamma-number", "2")
    now(page, 2.0, 1.2)
    assert find(page, "#gamma-number").get_attribute("aria-invalid") is None
    assert find(page, "#gamma-problem").text == ""


def test_tables_sort_by_mouse_and_keyboard(page, report):
    nll = [method.measures["nll"].value for method in report.methods]
    rising = [f"{value:.4f}" for value in sorted(nll)]
    header = find(page, "#methods thead th:nth-child(2)")
    assert header.get_attribute("aria-sort") is None
    header.find_element(By.TAG_NAME, "button").click()
    assert [text[:6] for text in column(page, "#methods", 1)] == rising
    assert header.get_attribute("aria-sort") == "ascending"
    header.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert [text[:6] for text in column(page, "#methods", 1)] == rising[::-1]
    assert header.get_attribute("aria-sort") == "descending"
    by_name = find(page, "#methods thead th:first-child")
    by_name.find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    titles = [text.split(" recommended")[0] for text in column(page, "#methods", 0)]
    assert titles == sorted(titles)
    assert (by_name.get_attribute("aria-sort"), header.get_attribute("aria-sort")) == ("ascending", None)
    assert "Sorted by Method" in page.execute_script("return document.getElementById('status').textContent")


def test_missing_values_are_sorted_last_both_ways(page):
    button = find(page, "#methods thead th:nth-child(7) button")
    for _ in range(2):
        button.click()
        assert column(page, "#methods", 6)[2:] == ["–", "–"]


def test_changes_sort_too(page, report):
    find(page, "#changed thead th button").click()
    assert [int(row) for row in column(page, "#changed", 0)] == sorted(change.row for change in report.changes)


def test_class_selector_redraws_both_diagrams(page, report):
    for index in (3, 6, 0):
        Select(find(page, "#class")).select_by_index(index)
        for when, method in (("before", report.given), ("after", report.chosen)):
            diagram = method.class_diagrams[index]
            circles = page.execute_script(
                f"return [...document.querySelectorAll('#class-{when} circle')]"
                ".map(c => [c.getAttribute('cx'), c.getAttribute('cy')].map(Number))"
            )
            expected = [
                [46 + 300 * c, 310 - 300 * a] for c, a in zip(diagram.confidence, diagram.accuracy, strict=True)
            ]
            np.testing.assert_allclose(circles, expected, atol=0.06)
        assert page.execute_script("return document.getElementById('class-now').textContent") == sample.NASTY[index]


def test_threshold_slider_shows_the_decisions_of_python(browser, tmp_path):
    report = sample.sample_report(397, 2)
    look(browser)
    browser.get(saved(report, tmp_path))
    slider = find(browser, "#threshold")
    for keys, index in ((Keys.HOME, 0), (Keys.ARROW_RIGHT, 1), (Keys.END, 98)):
        slider.send_keys(keys)
        assert find(browser, "#threshold-shown").text == find(browser, "#threshold-now").text == f"{index + 1}%"
        for side in ("given", "chosen"):
            for key, text in describe_threshold(report.thresholds, index, side).items():
                assert find(browser, f"#decision-{side}-{key}").text == text
        assert find(browser, "#decisions-changed").text == describe_changed(report.thresholds, index)
    assert browser.get_log("browser") == []


def luminance(color):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(color) / 255]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_text_has_enough_contrast(page, scheme, media):
    look(page, scheme=scheme, media=media)
    colors = page.execute_script("""
        const root = getComputedStyle(document.documentElement);
        const probe = document.body.appendChild(document.createElement("i"));
        return Object.fromEntries(["paper", "panel", "wash", "ink", "soft", "before", "after", "accent"].map((name) => {
            probe.style.color = root.getPropertyValue("--" + name);
            return [name, getComputedStyle(probe).color.match(/\\d+/g).map(Number)];
        }));
    """)
    light = luminance(colors["paper"]) > 0.5
    assert light == (scheme == "light" or media == "print")
    for ground in ("paper", "panel", "wash"):
        for name in ("ink", "soft", "before", "after", "accent"):
            high, low = sorted((luminance(colors[ground]), luminance(colors[name])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {ground}"


def test_print_leaves_out_the_controls(page):
    look(page, media="print")
    for selector in ("nav", ".controls", ".picker", ".skip", "#methods caption .on-screen"):
        assert not find(page, selector).is_displayed(), selector
    for selector in ("#before", "#after", "#histogram", "#map", ".shown", "#methods table"):
        assert find(page, selector).is_displayed(), selector
    assert len(page.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000


def test_a_laptop_shows_all_columns_of_the_methods(browser, tmp_path):
    val, test = demo.load().select("val"), demo.load().select("test")
    report = refocal.calibrate(val.scores, val.labels, gamma=demo.GAMMA).report(test.scores, test.labels)
    look(browser, width=1280)
    browser.get(saved(report, tmp_path))
    assert browser.execute_script(
        "const box = document.querySelector('#methods .scroll'); return box.scrollWidth <= box.clientWidth"
    )


@pytest.fixture(scope="module")
def pages(report, address, tmp_path_factory):
    """Pages of every kind: before and after, scores as given, two classes, more than are shown, and multi-label."""
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(300, 200))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    reports = {
        "given": refocal.evaluate(2 * logits[:, :4], labels % 4),
        "two": refocal.calibrate(logits[:, 0], labels % 2, method="platt").report(
            logits[:, 0], labels % 2, slices={"half": labels % 3}, costs=[[0, 1], [5, 0]]
        ),
        "many": refocal.calibrate(logits, labels, method="temperature").report(logits, labels),
        "multilabel": refocal.calibrate_multilabel(3 * logits[:, :8], logits[:, :8] > 0, method="platt").report(
            3 * logits[:, :8], rng.random((300, 8)) < 0.3, class_names=sample.NASTY[:8]
        ),
    }
    addresses = {name: saved(each, tmp_path_factory.mktemp(name)) for name, each in reports.items()}
    return {"fitted": address, **addresses}


KINDS = ("fitted", "given", "two", "many", "multilabel")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_lies_outside_the_screen(browser, pages, width, kind):
    look(browser, width=width)
    browser.get(pages[kind])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    outside = browser.execute_script("""
        const cells = "nav a, .sortable th, .sortable td, .live-table td, .bins td, .decisions td, .boxes pre";
        return [...document.querySelectorAll(cells)].filter(
            (cell) => cell.checkVisibility() && cell.getBoundingClientRect().right > innerWidth,
        ).map((cell) => cell.textContent);
    """)
    assert outside == [] or width in {320, 768}
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [390, 1280])
def test_charts_fill_their_columns(browser, pages, width, kind):
    look(browser, width=width)
    browser.get(pages[kind])
    shares = browser.execute_script("""
        return [...document.querySelectorAll(".chart")].map((chart) => {
            const column = chart.closest("figure"), row = column.parentElement;
            const columns = getComputedStyle(row).gridTemplateColumns.split(" ").length;
            const width = chart.getBoundingClientRect().width;
            return [chart.id, width / column.clientWidth, width * columns / row.clientWidth];
        });
    """)
    assert len(shares) >= 5
    for name, of_column, of_row in shares:
        assert of_column >= 0.99, name
        assert of_row >= 0.85, name  # the rest is the gap between the columns


def test_the_diagram_stands_beside_the_verdict_on_a_desktop(page):
    verdict, chart = find(page, "h1").rect, find(page, "#overview").rect
    assert chart["x"] > verdict["x"] + verdict["width"]
    assert chart["y"] < 400


def test_every_control_is_reached_by_tab_and_has_a_name(page):
    reached = []
    for _ in range(60):
        page.switch_to.active_element.send_keys(Keys.TAB)
        active = page.switch_to.active_element
        if active.tag_name == "body":
            break
        outline = page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", active)
        assert outline != "none", active.get_attribute("outerHTML")
        assert active.accessible_name, active.get_attribute("outerHTML")
        reached.append(active.get_attribute("id") or active.get_attribute("href") or active.text)
    assert reached[0].endswith("#main")
    assert {"class", "gamma", "gamma-number", "temperature", "temperature-number"} <= set(reached)


def test_everything_is_shown_without_scripts(browser, address):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(address)
        assert find(browser, "#before").is_displayed()
        assert find(browser, "#live circle").is_displayed()
        assert find(browser, "noscript p").is_displayed()
        assert not find(browser, ".controls").is_displayed()
        assert not find(browser, ".picker").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
