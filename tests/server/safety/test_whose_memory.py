"""Nobody answers with another conversation's memory, nor loses his own to one."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import xxhash
from chats import WAIT, post
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.identity.index import Index, Known, Place
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.testing import FaultyModel
from kvactors.core.schedule.sampling import Sampling

SHORT = Sampling(max_tokens=4, temperature=0)


@pytest.fixture
def system() -> Iterator[AgentSystem]:
    with AgentSystem(FaultyModel(), store=False, context=4096) as system:
        yield system


@pytest.fixture
def server(system: AgentSystem) -> Iterator[Server]:
    with serve(system, port=0, any_model=True, grace=1) as server:
        yield server


def say(server: Server, said: list[dict[str, Any]], **headers: str) -> httpx.Response:
    body = {"messages": said, "max_tokens": 4, "temperature": 0}
    answer = post(server, body, **headers)
    assert answer.status_code == 200, answer.text
    return answer


def on(said: list[dict[str, Any]], answer: httpx.Response, text: str) -> list[dict[str, Any]]:
    return [*said, answer.json()["choices"][0]["message"], {"role": "user", "content": text}]


HELLO = [{"role": "user", "content": "hello"}]


def test_an_agent_of_the_program_loses_nothing_to_a_client_that_takes_its_name(
    server: Server, system: AgentSystem
) -> None:
    alice = system.spawn("alice")
    alice.ask("remember me", sampling=SHORT).get()
    remembered = alice.transcript().token_ids

    answer = say(server, HELLO, **{"x-kvactors-agent": "alice"})
    again = say(server, on(HELLO, answer, "more"), **{"x-kvactors-agent": "alice"})

    assert alice.transcript().token_ids == remembered
    assert answer.headers["x-kvactors-agent"] == again.headers["x-kvactors-agent"] != "alice"


@pytest.mark.parametrize(("stored", "asked"), [(False, True), (True, True), (False, False)])
def test_an_agent_that_has_the_name_of_a_text_loses_nothing_to_it(
    tmp_path: Path, stored: bool, asked: bool
) -> None:
    said = {"prompt": "hello there", "max_tokens": 4, "temperature": 0}
    digest = xxhash.xxh3_64_hexdigest(b" 'hello there'")
    name = f"text-{digest}-0"
    with ExitStack() as stack:
        opened = partial(AgentSystem, FaultyModel(), store=tmp_path / "store", context=4096)
        system = stack.enter_context(opened())
        alice = system.spawn(name)
        if asked:
            alice.ask("remember me", sampling=SHORT).get()
        remembered = alice.transcript().token_ids
        if stored:
            system.stop()
            system = stack.enter_context(opened())
        with serve(system, port=0, any_model=True, grace=1) as server:
            answer = httpx.post(f"{server.url}/v1/completions", json=said, timeout=WAIT).json()

        assert answer["usage"]["prompt_tokens"] == len(system.chat.encode_whole("hello there"))
        assert system.spawn(name).transcript().token_ids == remembered
        assert stored or system.find(name) is alice


@pytest.mark.parametrize("change", [lambda frame: b"\0" * len(frame), lambda _: b""])
def test_an_agent_that_cannot_be_read_loses_nothing_to_a_client_that_takes_its_name(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    root = tmp_path / "store"
    with AgentSystem(FaultyModel(), store=root, context=4096) as before:
        before.spawn("alice").ask("remember me", sampling=SHORT).get()
    (ledger,) = root.glob("agents/alice-*/ledger.log")
    whole = ledger.read_bytes()
    ledger.write_bytes(change(whole))

    with (
        AgentSystem(FaultyModel(), store=root, context=4096) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
    ):
        for _ in range(2):
            answer = post(server, {"messages": HELLO}, **{"x-kvactors-agent": "alice"})
            assert answer.status_code == 500, answer.text

    assert ledger.read_bytes() == change(whole)


def test_an_agent_that_was_told_nothing_yet_is_the_programs_all_the_same(
    server: Server, system: AgentSystem
) -> None:
    alice = system.spawn("alice")

    refused = post(
        server,
        {"messages": [{"role": "user", "content": "too long " * 4000}], "max_tokens": 4},
        **{"x-kvactors-agent": "alice"},
    )
    assert refused.status_code == 400
    say(server, HELLO, **{"x-kvactors-agent": "alice"})

    assert system.find("alice") is alice
    assert not alice.transcript().turns


def test_a_client_that_names_who_answered_goes_on_with_it(server: Server) -> None:
    first = say(server, HELLO, **{"thread-id": "one"})
    who = first.headers["x-kvactors-agent"]

    second = say(server, on(HELLO, first, "more"), **{"x-kvactors-agent": who})

    assert second.headers["x-kvactors-agent"] == who


def test_an_agent_that_was_told_another_beginning_since_is_not_taken_for_the_old_one(
    server: Server, system: AgentSystem
) -> None:
    first = say(server, HELLO)
    said = on(HELLO, first, "more")
    second = say(server, said)
    agent = system.spawn(second.headers["x-kvactors-agent"])
    agent.rewind(turns=2).get()
    for text in ("HELLO", "more"):
        agent.ask(text, sampling=SHORT).get()

    third = say(server, on(said, second, "and?"))

    assert agent.transcript().turns[0].text == "HELLO"
    assert third.headers["x-kvactors-agent"] != agent.agent_id


def test_of_a_beginning_that_many_share_one_is_looked_at(server: Server) -> None:
    for _ in range(20):
        say(server, HELLO)
    looked = list[str]()

    @bug(AgentRegistry, "spawn")
    def counted(spawn: Any) -> Any:
        def spawned(self: AgentRegistry, agent_id: str, **options: Any) -> Any:
            looked.append(agent_id)
            return spawn(self, agent_id, **options)

        return spawned

    with seeded(counted):
        answer = say(server, HELLO)

    assert "again" in answer.headers["x-kvactors-reused"]
    assert len(looked) <= 3


def test_what_forgotten_agents_were_told_is_forgotten() -> None:
    index = Index(None)
    for agent, chains in (("a", (b"0", b"1", b"2")), ("b", (b"0", b"1", b"3"))):
        known = Known(agent, "", "", "{}", "{}", named=False)
        index.begin(known)
        places = [Place(chain, agent, n, "m", "{}") for n, chain in enumerate(chains[1:], 1)]
        index.note(known, 0, places)
        index.note_said(chains, ["shared", f"of {agent}"])

    index.forget("a")

    assert index.said_behind(b"0") == ["shared"]
    assert index.said_behind(b"1") == ["of b"]
    index.close()


def test_names_of_agents_are_a_keys_own(system: AgentSystem) -> None:
    ann, other = ("a" * 20, "b" * 20)
    with serve(system, port=0, any_model=True, keys=lambda: {ann, other}) as server:

        def said_by(key: str, said: list[dict[str, Any]]) -> httpx.Response:
            headers = {"x-kvactors-agent": "ann", "authorization": f"Bearer {key}"}
            return say(server, said, **headers)

        answers = [said_by(key, HELLO) for key in (ann, other)]
        again = [
            said_by(key, on(HELLO, answer, "more"))
            for key, answer in zip((ann, other), answers, strict=True)
        ]

    assert {answer.headers["x-kvactors-agent"] for answer in (*answers, *again)} == {"ann"}
    assert len({agent.agent_id for agent in system.agents()}) == 2


def test_a_key_does_not_see_that_another_has_its_system_prompt(system: AgentSystem) -> None:
    ann, other = ("a" * 20, "b" * 20)
    prompt = {"role": "system", "content": "You are careful. " * 40}

    def cached(server: Server, key: str, text: str) -> int:
        said = [prompt, {"role": "user", "content": text}]
        answer = say(server, said, authorization=f"Bearer {key}")
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    with serve(system, port=0, any_model=True, keys=lambda: {ann, other}) as server:
        first = cached(server, ann, "one")
        same_key = cached(server, ann, "two")
        other_key = cached(server, other, "three")

    assert first == other_key == 0
    assert same_key > 500


def test_what_is_observed_shares_a_beginning_with_its_own_key_alone(system: AgentSystem) -> None:
    ann, other = ("a" * 20, "b" * 20)

    def prefilled(server: Server, key: str, name: str) -> int:
        before = system.stats()["prefilled_tokens"]
        with httpx.Client(base_url=server.url, timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {key}"
            prompt = "You are careful. " * 40
            assert http.post("/agents", json={"id": name, "system_prompt": prompt}).is_success
            assert http.post(f"/agents/{name}/observe", json={"text": "It rains."}).is_success
        return system.stats()["prefilled_tokens"] - before

    with serve(system, port=0, any_model=True, keys=lambda: {ann, other}) as server:
        first, same_key = prefilled(server, ann, "one"), prefilled(server, ann, "two")
        other_key = prefilled(server, other, "three")

    assert first == other_key > 500
    assert same_key < 100


OTHERS = {
    "error": "ValueError: ann's prompt",
    "unsaved_bytes": 4711,
    "storage_error": "/ann: no bytes are free",
    "waiting": ("ann of another key",),
}


@bug(Lifecycle, "health")
def ann_is_in_trouble(health: Any) -> Any:
    return lambda lifecycle: replace(health(lifecycle), storage="failing", **OTHERS)


def told_of_health(server: Server, **headers: str) -> list[dict[str, Any]]:
    """By /health, and by the first snapshot of /events with these `headers`."""
    probe = httpx.get(f"{server.url}/health", timeout=WAIT).json()
    with httpx.stream("GET", f"{server.url}/events", timeout=WAIT, headers=headers) as answer:
        data = next(line for line in answer.iter_lines() if line.startswith("data: "))
    return [probe, json.loads(data[6:])["health"]]


def test_with_keys_nobody_is_told_what_is_wrong_with_whose_agents(system: AgentSystem) -> None:
    key = "k" * 20
    with seeded(ann_is_in_trouble):
        with serve(system, port=0, any_model=True, keys=lambda: {key}) as keyed:
            others = told_of_health(keyed, authorization=f"Bearer {key}")
        with serve(system, port=0, any_model=True) as own:
            mine = told_of_health(own)

    assert [health["state"] for health in others] == ["ok"] * 2
    assert [health["storage"] for health in others] == ["failing"] * 2
    assert all(OTHERS.keys().isdisjoint(health) for health in others)
    assert all(health["waiting"] == ["ann of another key"] for health in mine)
    assert all(health["error"] == "ValueError: ann's prompt" for health in mine)
