"""The page at `/` in a headless Chromium: it lists, chats, and comes back when the server does."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import WAIT, headless, needs_browser, until
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve

SCRIPT = "<script>document.title = 'caught'</script><img src=x onerror=\"document.title='caught'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with headless() as driver:
        yield driver


def element(browser: webdriver.Chrome, name: str) -> Any:
    return browser.find_element(By.ID, name)


def row(browser: webdriver.Chrome, agent: str) -> Any:
    """An agent's row, once it is there."""
    found = f'#agents [data-id="{agent}"]'
    return until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, found))[0]


def said(browser: webdriver.Chrome) -> list[str]:
    return [found.text for found in browser.find_elements(By.CSS_SELECTOR, "#transcript .said")]


def look_at(browser: webdriver.Chrome, server: Server, agent: str) -> None:
    """Open the page, and an agent on it."""
    browser.get(server.url)
    until(browser, lambda: row(browser, agent).click() is None)
    until(browser, lambda: element(browser, "agent-title").text == agent)


def make(server: Server, agent: str, *prompts: str) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT) as http:
        assert http.post("/agents", json={"id": agent}).status_code == 201
        for prompt in prompts:
            body = {"prompt": prompt, "max_tokens": 12}
            assert http.post(f"/agents/{agent}/turns", json=body).status_code == 200


def test_the_page_needs_nothing_of_others_and_lets_nothing_in(server: Server) -> None:
    answers = [
        httpx.get(f"{server.url}{path}") for path in ("/", "/page/style.css", "/page/page.js")
    ]

    for answer in answers:
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    html, _, script = (answer.text for answer in answers)
    assert " on" + "click" not in html
    assert "style=" not in html
    assert not any(word in script for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval("))


@needs_browser
def test_the_interface_is_shown_without_a_network(
    browser: webdriver.Chrome, server: Server
) -> None:
    browser.get(f"{server.url}/docs")

    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".opblock"))
    shown = {
        found.text for found in browser.find_elements(By.CSS_SELECTOR, ".opblock-summary-path")
    }
    # Chromium breaks long paths with blanks of no width.
    assert {"/v1/messages", "/agents"} <= {path.replace("\u200b", "") for path in shown}
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert loaded
    assert [url for url in loaded if not url.startswith((server.url, "data:"))] == []


@needs_browser
def test_what_is_chatted_is_streamed_and_remembered(
    browser: webdriver.Chrome, server: Server
) -> None:
    make(server, "page-chat", "My cat is called Tom. Remember that.")
    look_at(browser, server, "page-chat")
    until(browser, lambda: len(said(browser)) == 2)

    element(browser, "prompt").send_keys("What is my cat called?", Keys.ENTER)

    until(browser, lambda: len(said(browser)) == 4 and "Tom" in said(browser)[3])
    until(browser, lambda: element(browser, "send").text == "send")
    told = server.service.system.spawn("page-chat").transcript().turns
    until(browser, lambda: said(browser)[3] == told[3].text)
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#lanes rect.decode"))
    until(browser, lambda: "of" in element(browser, "memory-text").text)


@needs_browser
def test_a_script_in_a_transcript_is_text(browser: webdriver.Chrome, server: Server) -> None:
    make(server, "page-script", SCRIPT)
    look_at(browser, server, "page-script")

    until(browser, lambda: said(browser) and said(browser)[0] == SCRIPT)

    assert browser.title == "kvactors"
    assert browser.find_elements(By.CSS_SELECTOR, "#transcript script, #transcript img") == []


@needs_browser
def test_fork_rewind_and_forget_ask_first(browser: webdriver.Chrome, server: Server) -> None:
    make(server, "page-acts", "One.", "Two.")
    look_at(browser, server, "page-acts")
    until(browser, lambda: len(said(browser)) == 4)

    def press(*labels: str) -> None:
        for label in labels:
            found = f'[aria-label="{label}"], #{label.split()[0]}'
            browser.execute_script(
                "arguments[0].click()", browser.find_element(By.CSS_SELECTOR, found)
            )

    press("Fork behind turn 2")
    browser.find_element(By.CSS_SELECTOR, "#ask-fields input").send_keys("page-fork", Keys.ENTER)
    until(browser, lambda: element(browser, "agent-title").text == "page-fork")
    until(browser, lambda: len(said(browser)) == 2)

    until(browser, lambda: row(browser, "page-acts").click() is None)
    until(browser, lambda: len(said(browser)) == 4)
    press("Rewind to turn 2")
    assert len(server.service.system.spawn("page-acts").transcript().turns) == 4
    press("ask-yes")
    until(browser, lambda: len(said(browser)) == 2)

    press("forget", "ask-no")
    assert row(browser, "page-acts").is_displayed()
    press("forget", "ask-yes")
    gone = '#agents [data-id="page-acts"]'
    until(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, gone))


@needs_browser
def test_everything_has_a_name_and_the_console_is_quiet(
    browser: webdriver.Chrome, server: Server
) -> None:
    make(server, "page-names", "One.")
    look_at(browser, server, "page-names")
    until(browser, lambda: len(said(browser)) == 2)

    named = browser.find_elements(By.CSS_SELECTOR, "button, input, textarea, [role]")
    nameless = [
        found.get_attribute("outerHTML")
        for found in named
        if found.is_displayed() and found.aria_role != "presentation" and not found.accessible_name
        and found.aria_role not in ("none", "status", "generic")
    ]  # fmt: skip

    assert nameless == []
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


@needs_browser
def test_keys_choose_and_chat(browser: webdriver.Chrome, server: Server) -> None:
    make(server, "page-keys", "One.")
    look_at(browser, server, "page-keys")
    body = browser.find_element(By.TAG_NAME, "body")

    body.send_keys("/", "page-keys")
    found = (By.CSS_SELECTOR, "#agents .row")
    until(browser, lambda: len(browser.find_elements(*found)) == 1)
    browser.switch_to.active_element.send_keys(Keys.TAB, Keys.ARROW_DOWN, "c")

    assert browser.switch_to.active_element.get_attribute("id") == "prompt"


@pytest.mark.slow
@needs_browser
def test_the_page_comes_back_when_the_server_does(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    for life in ("first", "second"):
        with (
            AgentSystem(store=tmp_path) as system,
            serve(system, index=tmp_path / "clients.db", port=port) as server,
        ):
            if life == "first":
                make(server, "page-lives", "One.")
                look_at(browser, server, "page-lives")
            until(browser, lambda: element(browser, "state").text == "ok")
            until(browser, lambda: len(said(browser)) == 2)
        until(browser, lambda: "not connected" in element(browser, "state").text)
