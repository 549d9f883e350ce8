"""A real browser for tests of pages: headless Chromium, which nothing outside this machine reaches or is reached by."""

from __future__ import annotations

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser that keeps its console and its requests; the tests do not run where there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium or chromedriver is not installed")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium, which drives the browser, is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    folder = str(tmp_path_factory.mktemp("browser"))
    for flag in [*FLAGS, f"--user-data-dir={folder}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER, env={**os.environ, "HOME": folder}))
    yield driver
    driver.quit()


def look(browser, *, width=1200, scheme="light", media="screen"):
    """Give the window a width, and its user a preference for light or dark pages."""
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
