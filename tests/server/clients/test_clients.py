"""What Codex, OpenCode, Aider and Claude Code sent while a puppet fixed a bug for them, sent again.

`golden/clients` has their requests in the order in which they came: long texts are cut, the ids of
calls are those of then. Each conversation is one agent, of which each turn computes what is new.
"""

import json
import re
from collections import defaultdict
from typing import Any

import pytest
from recorded import RECORDED, Heard, read, send_again

CLIENTS = ("codex", "opencode", "aider", "claude")
BLOCK = 256


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
        elif one.exchange["path"].endswith("/messages"):
            assert one.events[-1]["type"] == "message_stop"
            ended = one.events[-2]["delta"]["stop_reason"]
            assert ended == ("tool_use" if one.exchange["calls"] else "end_turn")
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
    """The system prompt of a request, without what says nothing."""
    body = heard.exchange["body"]
    if "system" in body:
        return body["system"][1:]
    return (body.get("messages") or body["input"])[0]["content"]


def test_nothing_of_the_machine_is_in_a_recording(client: str) -> None:
    text = (RECORDED / f"{client}.json").read_text(encoding="utf-8")

    assert set(re.findall(r"/(?:home|root|tmp|work)/[\w./-]*", text)) <= set(
        re.findall(r"/home/user[\w./-]*", text)
    )
    assert len(text) < 50_000
