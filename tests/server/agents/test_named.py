"""Agents that clients ask for by a name: they answer, stay, and lose nothing to anybody."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from chats import post
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel
from kvactors.core.schedule.sampling import Sampling

RULES = {"role": "system", "content": "You are careful. " * 40}
HELLO = {"role": "user", "content": "hello"}
MORE = {"role": "user", "content": "more"}
SHORT = Sampling(max_tokens=4, temperature=0)
Said = list[dict[str, Any]]
PAGE = Path(__file__).parents[3] / "actors/frontends/server/README.md"


@pytest.fixture
def system() -> Iterator[AgentSystem]:
    with AgentSystem(FaultyModel(), store=False, context=4096) as system:
        yield system


@pytest.fixture
def server(system: AgentSystem) -> Iterator[Server]:
    with serve(system, port=0, any_model=True, grace=1) as server:
        yield server


def say(server: Server, said: Said, name: str = "", **headers: str) -> httpx.Response:
    headers |= {"x-kvactors-agent": name} if name else {}
    answer = post(server, {"messages": said, "max_tokens": 4, "temperature": 0}, **headers)
    assert answer.status_code == 200, answer.text
    return answer


def who(answer: httpx.Response) -> str:
    return answer.headers["x-kvactors-agent"]


def reply(answer: httpx.Response) -> dict[str, Any]:
    return dict(answer.json()["choices"][0]["message"])


def make(server: Server, name: str, **body: Any) -> None:
    made = httpx.post(f"{server.url}/agents", json={"id": name, **body}, timeout=60)
    assert made.status_code == 201, made.text


def heard(system: AgentSystem, name: str) -> str:
    agent = system.spawn(name)
    return (agent.system_prompt or "") + agent.transcript().text


def test_a_fork_that_is_asked_for_by_a_name_has_it_and_stays(
    server: Server, system: AgentSystem
) -> None:
    first = say(server, [HELLO])
    said = [HELLO, reply(first), MORE]

    fork = say(server, said, "ann")
    again = say(server, [*said, reply(fork), HELLO], "ann")

    assert "forked" in fork.headers["x-kvactors-reused"]
    assert (who(fork), who(again)) == ("ann", "ann")
    assert "ann" not in server.service.index.idle(float("inf"))


@pytest.mark.parametrize("beginning", [[RULES], [RULES, HELLO]])
def test_an_agent_of_the_program_is_forked_over_by_nobody(
    server: Server, system: AgentSystem, beginning: Said
) -> None:
    alice = system.spawn("alice")
    alice.ask("remember me", sampling=SHORT).get()
    remembered = alice.transcript().token_ids
    first = say(server, [RULES, HELLO])
    said = [RULES, MORE] if beginning == [RULES] else [RULES, HELLO, reply(first), MORE]

    answer = say(server, said, "alice")

    assert who(answer) != "alice"
    assert system.spawn("alice").transcript().token_ids == remembered


def test_an_agent_that_was_made_answers_who_names_it(server: Server, system: AgentSystem) -> None:
    make(server, "ann")

    first = say(server, [HELLO], "ann")
    again = say(server, [HELLO, reply(first), MORE], "ann")

    assert (who(first), who(again)) == ("ann", "ann")
    assert len(system.spawn("ann").transcript().turns) == 4


def test_its_own_system_prompt_stands_where_its_client_says_none(
    server: Server, system: AgentSystem
) -> None:
    make(server, "pirate", system_prompt="You are a pirate.")
    tools = [{"type": "function", "function": {"name": "sail", "parameters": {}}}]
    body = {"messages": [HELLO], "max_tokens": 4, "tools": tools}

    first = post(server, body, **{"x-kvactors-agent": "pirate"})
    second = say(server, [MORE], "pirate")
    other = say(server, [HELLO])

    assert (who(first), who(second) == "pirate") == ("pirate", False)
    assert "You are a pirate." in heard(system, "pirate")
    # Another conversation with it begins as it does; one that names nobody does not.
    assert "You are a pirate." in heard(system, who(second))
    assert "pirate" not in heard(system, who(other))


def test_what_its_client_says_stands_instead_of_its_own_system_prompt(
    server: Server, system: AgentSystem
) -> None:
    make(server, "pirate", system_prompt="You are a pirate.")

    answer = say(server, [RULES, HELLO], "pirate")

    assert who(answer) == "pirate"
    assert RULES["content"].strip() in heard(system, "pirate")
    assert "a pirate" not in heard(system, "pirate")


def test_an_agent_that_was_made_and_told_something_keeps_it(
    server: Server, system: AgentSystem
) -> None:
    make(server, "ann")
    httpx.post(f"{server.url}/agents/ann/observe", json={"text": "It rains."}, timeout=60)

    answer = say(server, [HELLO], "ann")

    assert who(answer) != "ann"
    assert [turn.text for turn in system.spawn("ann").transcript().turns] == ["It rains."]


def test_an_agent_that_was_made_of_another_goes_on_where_that_one_stood(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "sail", "parameters": {}}}]
    options = {"max_tokens": 4, "temperature": 0, "tools": tools}

    def ask(said: Said, name: str = "") -> httpx.Response:
        headers = {"x-kvactors-agent": name} if name else {}
        return post(server, {"messages": said, **options}, **headers)

    first = ask([HELLO])
    make(server, "other", **{"from": who(first)})
    said = [HELLO, reply(first), MORE]

    second = ask(said, "other")
    third = ask([*said, reply(second), HELLO], "other")

    assert (who(second), who(third)) == ("other", "other")
    assert all("goes on" in answer.headers["x-kvactors-reused"] for answer in (second, third))


def test_an_agent_that_was_made_outlives_a_request_that_fails(
    server: Server, system: AgentSystem
) -> None:
    make(server, "ann", system_prompt="You are a pirate.")
    long = {"role": "user", "content": "too long " * 4000}

    refused = post(server, {"messages": [long]}, **{"x-kvactors-agent": "ann"})

    assert refused.status_code == 400
    assert system.find("ann") is not None
    assert who(say(server, [HELLO], "ann")) == "ann"
    assert "You are a pirate." in heard(system, "ann")


def test_an_agent_that_a_key_made_answers_that_key_alone(system: AgentSystem) -> None:
    ann, other = "a" * 20, "b" * 20
    with serve(system, port=0, any_model=True, keys=lambda: {ann, other}) as server:
        bearer = {key: {"authorization": f"Bearer {key}"} for key in (ann, other)}
        with httpx.Client(base_url=server.url, headers=bearer[ann], timeout=60) as http:
            assert http.post("/agents", json={"id": "ann", "system_prompt": "A pirate."}).is_success
        theirs = say(server, [HELLO], "ann", **bearer[other])
        mine = say(server, [HELLO], "ann", **bearer[ann])

    assert (who(theirs), who(mine)) == ("ann", "ann")
    pirates = [agent for agent in system.agents() if "pirate" in heard(system, agent.agent_id)]
    assert len(system.agents()) == 2
    assert len(pirates) == 1


def test_without_keys_nobody_takes_an_agent_that_a_key_made(
    system: AgentSystem, tmp_path: Path
) -> None:
    key, index = "a" * 20, tmp_path / "clients.db"
    with serve(system, index=index, port=0, any_model=True, keys=lambda: {key}) as server:
        bearer = {"authorization": f"Bearer {key}"}
        httpx.post(f"{server.url}/agents", json={"id": "ann"}, headers=bearer, timeout=60)
    (ann,) = system.agents()

    with serve(system, index=index, port=0, any_model=True) as server:
        answer = say(server, [HELLO], ann.agent_id)

    assert who(answer) != ann.agent_id
    assert ann.transcript().turns == ()


def test_the_prompt_of_an_agent_that_was_made_is_sealed_as_the_store_is(tmp_path: Path) -> None:
    key, path = bytes(range(32)), tmp_path / "clients.db"
    with (
        AgentSystem(FaultyModel(), store=tmp_path, encryption_key=key) as system,
        serve(system, index=path, port=0, any_model=True, encryption_key=key) as server,
    ):
        make(server, "pirate", system_prompt="You are a pirate.")
        answer = say(server, [HELLO], "pirate")

        assert "You are a pirate." in heard(system, who(answer))
    assert all(b"pirate." not in file.read_bytes() for file in tmp_path.glob("clients.db*"))


def test_a_server_finds_who_was_named_in_the_store_which_is_sealed(tmp_path: Path) -> None:
    key = bytes(range(32))
    with AgentSystem(FaultyModel(), store=tmp_path, encryption_key=key) as system:
        with serve(system, port=0, any_model=True) as server:
            make(server, "pirate", system_prompt="You are a pirate.")
        (made,) = system.agents()
        with serve(system, port=0, any_model=True) as server:
            answer = say(server, [HELLO], "pirate")

    assert who(answer) == made.agent_id
    databases = list(tmp_path.glob("clients.db*"))
    assert databases
    assert all(b"pirate." not in file.read_bytes() for file in databases)


def test_a_parent_that_is_forgotten_meanwhile_is_done_without(
    server: Server, system: AgentSystem
) -> None:
    first = say(server, [HELLO])

    @bug(AgentSystem, "spawn")
    def forgets(spawn: Any) -> Any:
        def spawned(self: AgentSystem, agent_id: str, *args: Any, **options: Any) -> Any:
            if parent := options.get("from_"):
                self.forget(parent)
            return spawn(self, agent_id, *args, **options)

        return spawned

    with seeded(forgets):
        branch = say(server, [HELLO, reply(first), MORE], **{"thread-id": "other"})
        alike = say(server, [HELLO], **{"thread-id": "third"})

    assert all("new" in answer.headers["x-kvactors-reused"] for answer in (branch, alike))


def test_nobody_begins_with_the_words_of_an_agent_that_its_program_has_forgotten(
    server: Server, system: AgentSystem
) -> None:
    first = say(server, [RULES, HELLO])
    system.forget(who(first))

    for said in ([RULES, HELLO, reply(first), MORE], [RULES, MORE]):
        answer = say(server, said)

        assert RULES["content"].strip() in heard(system, who(answer))


def test_a_named_agent_remembers_as_the_page_says() -> None:
    found = re.search(
        r"## Who is the agent\n.*?```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert found is not None

    with AgentSystem(store=False) as system, serve(system, port=0) as server:
        names: dict[str, Any] = {
            "OpenAI": openai.OpenAI,
            "httpx": httpx,
            "url": server.url,
            "system": system,
        }
        exec(found[1], names)
        stranger = say(server, [{"role": "user", "content": "What is my cat called?"}], "carl")
        fork = say(server, [*names["said"], MORE])

    assert [turn["role"] for turn in names["said"]] == ["user", "assistant"] * 4
    assert all("Biscuit" in turn["content"] for turn in names["said"][3::2])
    assert who(stranger) != "carl"
    assert "new" in stranger.headers["x-kvactors-reused"]
    assert "forked" in fork.headers["x-kvactors-reused"]
