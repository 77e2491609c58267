"""The page of a run in a headless Chromium: quiet, searchable, and nobody's scripts but its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import headless, needs_browser, until
from selenium import webdriver
from selenium.webdriver.common.by import By

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.results.write import write_results

pytestmark = pytest.mark.usefixtures("drawn")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(sweep: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(sweep, tmp_path_factory.mktemp("results"))[-1]


def shown(browser: webdriver.Chrome) -> list[str]:
    """Articles that are not hidden, whatever is folded."""
    found = browser.find_elements(By.CSS_SELECTOR, "article:not([hidden])")
    return [str(each.get_property("textContent")) for each in found]


def search(browser: webdriver.Chrome, words: str) -> list[str]:
    field = browser.find_element(By.ID, "search")
    field.clear()
    field.send_keys(words)
    return shown(browser)


def test_the_page_needs_no_network(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    names = ("http://www.w3.org/", "http://purl.org/", "http://creativecommons.org/")

    for name in (*names, "https://matplotlib.org/"):
        html = html.replace(name, "")
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src 'none'" in html


@needs_browser
def test_the_console_is_quiet_and_what_agents_said_is_text(
    browser: webdriver.Chrome, page: Path, sweep: list[Run]
) -> None:
    browser.get(page.as_uri())

    assert browser.title == "yard"
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert browser.find_elements(By.CSS_SELECTOR, "article script, article img, article b") == []
    texts = "\n".join(shown(browser))
    for turn in (turn for run in sweep for turn in run.turns):
        assert turn.answer.replace("\r\n", "\n") in texts
    assert "Told in private." in texts
    assert texts.count("ContextExceeded: no <room>") == len(sweep)


@needs_browser
def test_search_finds_turns_that_have_all_words(browser: webdriver.Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    every = len(shown(browser))

    found = search(browser, "ZAŻÓŁĆ ann")

    assert len(found) == 4
    assert all("zażółć" in text for text in found)
    assert browser.find_element(By.ID, "found").text == f"4 of {every}"
    assert search(browser, "nobody said this") == []
    assert len(search(browser, " ")) == every


@needs_browser
def test_a_line_of_the_timeline_leads_to_its_turn(browser: webdriver.Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    links = browser.find_elements(By.CSS_SELECTOR, "#picture-timeline a")
    goals = [link.get_dom_attribute("xlink:href") for link in links]

    assert len(goals) == 12
    assert {len(browser.find_elements(By.CSS_SELECTOR, goal)) for goal in goals} == {1}

    browser.execute_script(f"location.hash = '{goals[-1]}'")
    top = f"return document.querySelector('{goals[-1]}').getBoundingClientRect().top"
    until(browser, lambda: 0 <= browser.execute_script(top) < 860)


@needs_browser
@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_ink_is_seen_on_paper_by_day_and_by_night(
    browser: webdriver.Chrome, page: Path, scheme: str, dark: bool
) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.as_uri())

    def brightness(selector: str, style: str) -> int:
        script = f"return getComputedStyle(document.querySelector('{selector}')).{style}"
        colour = browser.execute_script(script)
        return sum(int(part) for part in colour.strip("rgba()").split(",")[:3])

    paper = brightness("body", "backgroundColor")
    assert (paper < 200) is dark
    # Words of pictures have the page's ink too.
    for ink in (brightness("body", "color"), brightness("#pictures svg text", "fill")):
        assert abs(ink - paper) > 400


@needs_browser
def test_everything_that_is_used_has_a_name(browser: webdriver.Chrome, page: Path) -> None:
    browser.get(page.as_uri())

    found = browser.find_elements(By.CSS_SELECTOR, "input, nav, summary, nav a")

    assert len(found) > 8
    assert [each.tag_name for each in found if not each.accessible_name] == []
