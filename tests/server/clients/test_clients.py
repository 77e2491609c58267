"""What Codex, OpenCode and Aider sent while a puppet fixed a bug for them, sent again.

`golden/clients` has their requests in the order in which they came: long texts are cut, the ids of
calls are those of then. Each conversation is one agent, of which each turn computes what is new.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from puppets import puppet_server

from kvactors.actors.testing import PuppetModel

RECORDED = Path(__file__).parents[2] / "golden" / "clients"
CLIENTS = ("codex", "opencode", "aider")
BLOCK = 256


@dataclass(frozen=True)
class Heard:
    """A recorded `exchange`, and what came of it: the agent, how it was found, usage, and the
    events of the stream."""

    exchange: dict[str, Any]
    agent: str
    how: str
    prompt: int
    cached: int
    events: list[dict[str, Any]]

    @property
    def conversation(self) -> tuple[str, bool]:
        """What the client itself holds to be one: of a session without tools it makes titles."""
        headers = self.exchange["headers"]
        name = headers.get("thread-id") or headers.get("x-session-id") or ""
        return name, bool(self.exchange["body"].get("tools"))

    @property
    def parent(self) -> str:
        """The conversation that this one says it comes from."""
        headers = self.exchange["headers"]
        return str(
            headers.get("x-codex-parent-thread-id") or headers.get("x-parent-session-id") or ""
        )


def read(client: str) -> list[dict[str, Any]]:
    """The exchanges of a client. What is sent more than once stands in its file once."""
    recorded = json.loads((RECORDED / f"{client}.json").read_text(encoding="utf-8"))
    for exchange in recorded["exchanges"]:
        body = exchange["body"]
        for field, things in (("messages", "items"), ("input", "items"), ("tools", "tools")):
            if field in body:
                body[field] = [recorded[things][place] for place in body[field]]
    exchanges: list[dict[str, Any]] = recorded["exchanges"]
    return exchanges


def send_again(exchanges: list[dict[str, Any]], store: Path) -> Iterator[Heard]:
    """The exchanges with a server that is started anew where it was."""
    says, given = list[str](), dict[str, str]()
    with ExitStack() as running:
        server = None
        for exchange in exchanges:
            if server is None or exchange["restarted"]:
                running.close()
                puppet = PuppetModel(lambda _said: says.pop(0))
                server = running.enter_context(puppet_server(puppet, store))
            says.append(exchange["says"])
            body = json.dumps(exchange["body"])
            for then, now in given.items():
                body = body.replace(then, now)
            answer = httpx.post(
                f"{server.url}{exchange['path']}",
                content=body,
                headers={"content-type": "application/json", **exchange["headers"]},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            heard = heard_of(exchange, answer)
            given |= zip(exchange["calls"], calls_of(heard), strict=True)
            yield heard


def heard_of(exchange: dict[str, Any], answer: httpx.Response) -> Heard:
    """What an answer says, streamed or not."""
    lines = answer.text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    whole = [] if data else [answer.json()]
    events = [json.loads(one) for one in data if one != "[DONE]"] or whole
    last = events[-1]
    usage = last["response"]["usage"] if "response" in last else last.get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Heard(
        exchange,
        answer.headers["x-kvactors-agent"],
        answer.headers["x-kvactors-reused"],
        usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        details.get("cached_tokens", 0),
        events,
    )


def calls_of(heard: Heard) -> list[str]:
    """The ids of the calls that were made, each once."""
    return list(dict.fromkeys(re.findall(r"call_kv[0-9a-f]{24}", json.dumps(heard.events))))


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """The name of one."""
    return str(request.param)


@pytest.fixture(scope="module")
def heard(client: str, tmp_path_factory: pytest.TempPathFactory) -> list[Heard]:
    """All that came of a client's requests."""
    return list(send_again(read(client), tmp_path_factory.mktemp(client)))


@pytest.mark.slow
def test_each_stream_ends_as_its_client_needs(heard: list[Heard]) -> None:
    for one in heard:
        if one.exchange["path"].endswith("/responses"):
            kinds = [event["type"] for event in one.events]
            assert kinds.count("response.output_item.done") == len(
                one.events[-1]["response"]["output"]
            )
            assert kinds[-1] == "response.completed"
            assert one.events[-1]["response"]["id"]
        elif one.exchange["body"].get("stream"):
            (end,) = [
                choice["finish_reason"]
                for event in one.events
                for choice in event["choices"]
                if choice["finish_reason"]
            ]
            assert end == ("tool_calls" if one.exchange["calls"] else "stop")


def test_each_conversation_is_one_agent(client: str, heard: list[Heard]) -> None:
    agents = defaultdict(set)
    for one in heard:
        agents[one.conversation].add(one.agent)

    if client == "aider":
        # It names none: what goes on is found by what it says.
        assert len({one.agent for one in heard}) == len(heard)
        return
    assert all(len(known) == 1 for known in agents.values())
    assert len(set().union(*agents.values())) == len(agents) > 3


def test_a_turn_computes_what_is_new(client: str, heard: list[Heard]) -> None:
    latest: dict[str, Heard] = {}
    for one in heard:
        before, latest[one.agent] = latest.get(one.agent), one
        if before is not None and one.prompt:
            assert "goes on" in one.how
            assert one.cached >= before.prompt - BLOCK
    assert client == "aider" or any("goes on" in one.how for one in heard)


def test_a_conversation_goes_on_after_a_restart(client: str, heard: list[Heard]) -> None:
    if client == "aider":
        pytest.skip("its next process says another system prompt and history")
    place = next(i for i, one in enumerate(heard) if one.exchange["restarted"])
    resumed = heard[place]

    assert resumed.agent in {one.agent for one in heard[:place]}
    assert "goes on" in resumed.how
    assert resumed.cached > 0.8 * resumed.prompt


def test_helpers_are_agents_of_their_own(client: str, heard: list[Heard]) -> None:
    if client == "aider":
        pytest.skip("it has none")
    helpers = [one for one in heard if one.parent]
    first, *_ = helpers
    parents = {one.agent for one in heard if one.conversation[0] == first.parent}

    assert len({one.agent for one in helpers}) == 2
    assert not parents & {one.agent for one in helpers}
    assert "forked" in first.how


def test_who_begins_alike_computes_the_beginning_once(client: str, heard: list[Heard]) -> None:
    """Another session has the same system prompt and tools, and so have two helpers."""
    if client == "aider":
        pytest.skip("it has one of each")
    firsts = {one.conversation: one for one in reversed(heard) if one.conversation[1]}
    known: set[str] = set()
    for one in sorted(firsts.values(), key=heard.index):
        begins = json.dumps([one.exchange["body"]["tools"], beginning(one)])
        if begins in known:
            assert one.cached > 0.75 * one.prompt
        known.add(begins)
    assert len(known) < len(firsts)


def beginning(heard: Heard) -> Any:
    """The system prompt of a request."""
    body = heard.exchange["body"]
    return (body.get("messages") or body["input"])[0]["content"]


def test_nothing_of_the_machine_is_in_a_recording(client: str) -> None:
    text = (RECORDED / f"{client}.json").read_text(encoding="utf-8")

    assert set(re.findall(r"/(?:home|root|tmp|work)/[\w./-]*", text)) <= set(
        re.findall(r"/home/user[\w./-]*", text)
    )
    assert len(text) < 50_000
