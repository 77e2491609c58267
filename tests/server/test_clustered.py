"""A server whose agents live on the nodes of a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from together import Together
from waiting import eventually

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve

TOLD = {"role": "user", "content": "My cat is called Tom. Remember that."}
ASKED = {"role": "user", "content": "What is my cat called?"}
SYSTEM = {"role": "system", "content": "You remember what you are told."}
KEY = bytes(range(32))
WAIT = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    """Two of them, encrypted."""
    nodes = Together(tmp_path_factory.mktemp("nodes"), "one", "two", key=KEY)
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index") / "clients.db"


@pytest.fixture(scope="module")
def server(nodes: Together, index: Path) -> Iterator[Server]:
    with serve(nodes.cluster.front(), index=index, port=0, encryption_key=KEY) as server:
        yield server


def ask(server: Server, messages: list[Any], **options: Any) -> Any:
    """The answer, and what its headers say."""
    options = {"temperature": 0, "max_tokens": 30} | options
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="default", messages=messages, **options
        )
        return raw.parse(), raw.headers


def told(server: Server, system: str) -> tuple[list[Any], str]:
    """A conversation in which something was told, and its agent."""
    messages = [{"role": "system", "content": system}, TOLD]
    answer, headers = ask(server, messages)
    said = {"role": "assistant", "content": answer.choices[0].message.content}
    return [*messages, said], headers["x-kvactors-agent"]


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_a_conversation_goes_on_where_its_agent_moved_to(server: Server, nodes: Together) -> None:
    messages, agent = told(server, "You move about.")
    first = nodes.cluster.place(agent)

    second = nodes.cluster.migrate(agent)
    answer, headers = ask(server, [*messages, ASKED])

    assert second.node != first.node
    assert ("Tom" in text_of(answer), headers["x-kvactors-agent"]) == (True, agent)
    assert answer.usage.prompt_tokens_details.cached_tokens > 0.6 * answer.usage.prompt_tokens


def test_it_says_what_a_server_of_one_system_says(server: Server, tmp_path: Path) -> None:
    scored = {"logprobs": True, "top_logprobs": 2}
    with AgentSystem(store=tmp_path, reproducible=True) as system, serve(system, port=0) as alone:
        expected, _ = ask(alone, [SYSTEM, TOLD], **scored)
    found, _ = ask(server, [SYSTEM, TOLD], **scored)

    assert text_of(found) == text_of(expected)
    assert found.choices[0].logprobs == expected.choices[0].logprobs
    assert found.usage == expected.usage


def test_a_branch_is_a_fork_and_leaves_the_first_one_as_it_is(server: Server) -> None:
    messages, agent = told(server, "You branch off.")
    said = {"role": "assistant", "content": text_of(ask(server, [*messages, ASKED])[0])}
    other, headers = ask(server, [*messages, {"role": "user", "content": "Where is my cat?"}])
    again, back = ask(server, [*messages, ASKED, said, ASKED])

    assert headers["x-kvactors-agent"] != agent == back["x-kvactors-agent"]
    assert other.usage.prompt_tokens_details.cached_tokens > 0
    assert "Tom" in text_of(again)


def test_a_stream_says_at_once_how_much_is_known(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        messages: Any = client.messages
        options = {"model": "default", "max_tokens": 30, "extra_body": {"temperature": 0}}
        first = messages.create(messages=[TOLD], **options)
        said = {"role": "assistant", "content": first.content[0].text}
        with messages.stream(messages=[TOLD, said, ASKED], **options) as stream:
            events = list(stream)

    assert events[0].message.usage.cache_read_input_tokens > 0
    assert "Tom" in events[-1].message.content[0].text


def test_an_agent_that_another_program_forgot_begins_anew(server: Server, nodes: Together) -> None:
    messages, agent = told(server, "You are forgotten.")
    nodes.cluster.forget(agent)

    answer, headers = ask(server, [*messages, ASKED])

    assert "Tom" in text_of(answer)
    assert headers["x-kvactors-agent"] != agent or headers["x-kvactors-reused"] == "0"


def test_turns_that_another_program_took_are_not_gone_on_with(
    server: Server, nodes: Together
) -> None:
    messages, agent = told(server, "You are told by two.")
    spoken = nodes.cluster.find(agent)
    assert spoken is not None
    spoken.rewind(turns=1).get(timeout=WAIT)
    spoken.ask("My cat is called Mia. Remember that.").get(timeout=WAIT)

    answer, _ = ask(server, [*messages, ASKED])

    assert "Tom" in text_of(answer)


def test_a_new_server_over_the_same_index_knows_its_conversations(
    nodes: Together, tmp_path: Path
) -> None:
    def opened() -> Server:
        index = tmp_path / "clients.db"
        return serve(nodes.cluster.front(), index=index, port=0, encryption_key=KEY)

    with opened() as first:
        messages, agent = told(first, "You are served twice.")
    with opened() as second:
        answer, headers = ask(second, [*messages, ASKED])

    assert headers["x-kvactors-agent"] == agent
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


def test_what_crosses_is_sealed(server: Server, nodes: Together) -> None:
    system = "You keep a secret."
    told(server, system)

    # Whole sentences: three letters stand somewhere in a megabyte of anything.
    said = [text.encode() for text in (system, TOLD["content"])]
    assert not [text for text in said if any(text in record for record in nodes.transport.seen)]


def test_nothing_stays_of_a_text(server: Server, nodes: Together) -> None:
    before = [agent.agent_id for agent in nodes.cluster.agents()]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "logprobs": 1, "echo": True}
        found = client.completions.create(model="default", prompt="The candle costs", **options)

    assert found.choices[0].text.startswith("The candle costs")
    assert found.choices[0].logprobs.token_logprobs[1] < 0
    assert [agent.agent_id for agent in nodes.cluster.agents()] == before


def test_what_only_a_system_of_its_own_has_is_not_there(server: Server) -> None:
    with httpx.Client(base_url=server.url) as client:
        health = client.get("/health").json()
        assert (health["state"], health["alive"]) == ("ok", 2)
        assert [client.get(path).status_code for path in ("/", "/agents", "/events")] == [404] * 3
        assert "default" in client.get("/v1/models").text


def test_a_lost_node_is_a_pause(server: Server, nodes: Together) -> None:
    """The last one: there is one node then."""
    messages, agent = told(server, "You lose your node.")
    eventually(lambda: nodes.cluster.place(agent).replica is not None)
    place = nodes.cluster.place(agent)

    nodes.lose(place.node)
    answer, headers = ask(server, [*messages, ASKED])

    assert headers["x-kvactors-agent"] == agent
    assert "Tom" in text_of(answer)
    assert nodes.cluster.place(agent).node == place.replica


def test_an_agent_of_the_cluster_is_forked_over_by_no_client(
    server: Server, nodes: Together
) -> None:
    system = {"role": "system", "content": "You are forked."}
    told(server, "You are forked.")
    nodes.cluster.spawn("alice").ask("Remember me.").get(timeout=WAIT)

    options = {"extra_headers": {"x-kvactors-agent": "alice"}}
    _, headers = ask(server, [system, ASKED], **options)

    assert "forked" in headers["x-kvactors-reused"]
    assert headers["x-kvactors-agent"] != "alice"
