"""A headless Chromium, for tests of pages."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["WAIT", "headless", "needs_browser", "until"]

WAIT = 60
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium or chromedriver here: apt install chromium-driver"
)


@contextmanager
def headless() -> Iterator[webdriver.Chrome]:
    """One that logs what pages complain about."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,860"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def until(browser: webdriver.Chrome, condition: Callable[[], Any]) -> Any:
    """What a condition gives once it is true."""
    seen = (StaleElementReferenceException,)
    return WebDriverWait(browser, WAIT, 0.05, seen).until(lambda _: condition())
