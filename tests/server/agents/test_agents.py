"""`/agents`: agents as they are, over HTTP, each key with its own."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from inside import system_of

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel

WAIT = 60
TOLD = "My cat is called Tom. Remember that."
ASKED = "What is my cat called?"


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT) as http:
        yield http


def spawn(http: httpx.Client, **body: Any) -> str:
    answer = http.post("/agents", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["agent"]["id"])


def turn(http: httpx.Client, agent: str, prompt: str, **body: Any) -> dict[str, Any]:
    answer = http.post(f"/agents/{agent}/turns", json={"prompt": prompt, "max_tokens": 30, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def texts(http: httpx.Client, agent: str) -> list[str]:
    return [turn["text"] for turn in http.get(f"/agents/{agent}/transcript").json()["turns"]]


def events(http: httpx.Client, agent: str, **body: Any) -> list[tuple[str, Any]]:
    with http.stream("POST", f"/agents/{agent}/turns", json={"stream": True, **body}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith(("event:", "data:"))]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, (json.loads(line[6:]) for line in lines[1::2]), strict=True))


def test_a_turn_that_is_sent_again_is_taken_once(http: httpx.Client) -> None:
    agent = spawn(http)

    first, again = (turn(http, agent, TOLD, request_id="4711") for _ in range(2))

    assert again["text"] == first["text"]
    assert texts(http, agent) == [TOLD, first["text"]]


def test_an_agent_remembers_across_turns_and_is_listed(http: httpx.Client) -> None:
    agent = spawn(http, id="tom/owner", system_prompt="You remember what you are told.")

    turn(http, agent, TOLD)
    answer = turn(http, agent, ASKED)

    assert "Tom" in answer["text"]
    assert answer["answer"] == answer["text"]
    assert answer["cache"] == "hot"
    listed = {view["id"]: view for view in http.get("/agents").json()["agents"]}
    assert listed[agent]["tier"] == "hot"
    assert listed[agent]["turns"] == 4
    assert listed[agent] == http.get(f"/agents/{agent}").json()["agent"]
    assert texts(http, agent)[::2] == [TOLD, ASKED]


def test_a_stream_says_what_the_whole_answer_says(http: httpx.Client) -> None:
    agent = spawn(http)
    turn(http, agent, TOLD)
    other = http.post(f"/agents/{agent}/fork", json={}).json()["agent"]["id"]

    whole = turn(http, agent, ASKED)
    *pieces, (last, end) = events(http, other, prompt=ASKED, max_tokens=30)

    assert {name for name, _ in pieces} == {"text"}
    assert "".join(piece["text"] for _, piece in pieces) == whole["text"] == end["text"]
    assert last == "end"
    assert end["usage"]["reused_tokens"] > 0


def test_a_fork_at_a_turn_remembers_no_more(http: httpx.Client) -> None:
    agent = spawn(http)
    turn(http, agent, "One.")
    turn(http, agent, "Two.")

    fork = http.post(f"/agents/{agent}/fork", json={"id": "half", "at": 2})

    assert fork.status_code == 201
    assert texts(http, "half") == texts(http, agent)[:2]
    assert spawn(http, **{"from": agent, "at": 0, "id": "none"}) == "none"
    assert texts(http, "none") == []


def test_what_is_observed_stays_and_what_is_rewound_goes(http: httpx.Client) -> None:
    agent = spawn(http)
    turn(http, agent, "One.")

    seen = http.post(f"/agents/{agent}/observe", json={"text": "It rains."}).json()
    left = http.post(f"/agents/{agent}/rewind", json={"keep": 2}).json()
    none = http.post(f"/agents/{agent}/rewind", json={}).json()

    assert (seen["turns"], left["turns"], none) == (3, 2, {"turns": 0, "tokens": 0})


def test_an_agent_goes_out_as_a_file_and_comes_back(http: httpx.Client) -> None:
    agent = spawn(http)
    turn(http, agent, TOLD)

    file = http.get(f"/agents/{agent}/export")
    back = http.post("/agents/again/import", content=file.content)

    assert "attachment" in file.headers["content-disposition"]
    assert back.status_code == 201, back.text
    assert back.json()["agent"]["tier"] == "warm"
    assert texts(http, "again") == texts(http, agent)
    assert http.post("/agents/third/import", content=b"no agent").status_code == 400


def test_a_warm_agent_is_read_ahead(http: httpx.Client, server: Server) -> None:
    agent = spawn(http)
    turn(http, agent, TOLD)
    system_of(server).wait_idle(WAIT)

    assert http.post(f"/agents/{agent}/prefetch").status_code == 202
    assert {t["tier"] for t in http.get(f"/agents/{agent}/transcript").json()["turns"]} == {"hot"}


def test_a_forgotten_agent_is_gone(http: httpx.Client) -> None:
    agent = spawn(http)
    turn(http, agent, TOLD)

    assert http.delete(f"/agents/{agent}").status_code == 204

    gone = [http.get(f"/agents/{agent}"), http.delete(f"/agents/{agent}")]
    assert [answer.status_code for answer in gone] == [404, 404]
    assert agent not in {view["id"] for view in http.get("/agents?limit=10000").json()["agents"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/agents", {"id": ""}, 400, "id"),
        ("/agents", {"colour": "red"}, 400, "colour"),
        ("/agents", {"id": "known"}, 409, "known"),
        ("/agents", {"from": "nobody"}, 404, "nobody"),
        ("/agents", {"at": 3}, 400, "at"),
        ("/agents", {"context_policy": {"kind": "drop_oldest", "fill": 7}}, 400, "fill"),
        ("/agents/nobody/turns", {"prompt": "?"}, 404, "nobody"),
        ("/agents/known/turns", {"prompt": ""}, 400, "prompt"),
        ("/agents/known/turns", {"prompt": "?", "top_p": 7}, 400, "top_p"),
        ("/agents/known/turns", {"prompt": "?", "max_tokens": 10**9}, 400, "max_tokens"),
        ("/agents/known/rewind", {"keep": 99}, 400, "99"),
        ("/agents/known/rewind", {"keep": 1, "to_token": 1}, 400, "to_token"),
        ("/agents/known/fork", {"at": 99}, 400, "99"),
        ("/agents/known/fork", {"id": "known"}, 409, "known"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    http.post("/agents", json={"id": "known"})

    answer = http.post(path, json=body)

    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


def test_the_documentation_has_every_body_and_answer(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()

    body = described["components"]["schemas"]["TurnBody"]["properties"]
    assert {"prompt", "messages", "stream", "temperature", "choices"} <= body.keys()
    for path, methods in described["paths"].items():
        if path.startswith("/agents"):
            for method, operation in methods.items():
                assert operation["description"], (method, path)


def test_two_requests_for_one_agent_never_mix(tmp_path: Path) -> None:
    model = FaultyModel()

    async def ask(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT) as http:
            await http.post("/agents", json={"id": "ann"})
            gate = model.hold()
            first = asyncio.create_task(http.post("/agents/ann/turns", json={"prompt": "One."}))
            await asyncio.to_thread(model.reached.wait, WAIT)
            said = {"messages": [{"role": "user", "content": "Two."}], "max_tokens": 3}
            named = {"x-kvactors-agent": "ann"}
            refused = [
                await http.post("/agents/ann/turns", json={"prompt": "Two."}),
                await http.post("/agents/ann/rewind", json={}),
                await http.delete("/agents/ann"),
            ]
            chat = http.post("/v1/chat/completions", json=said, headers=named)
            other = asyncio.create_task(chat)
            gate.set()
            return [*refused, await first, await other]

    with (
        AgentSystem(model, store=tmp_path) as system,
        serve(system, index=tmp_path / "clients.db", port=0, any_model=True) as server,
    ):
        *refused, first, chat = asyncio.run(ask(server.url))
        turns = [turn.text for turn in system.spawn("ann").transcript().turns]

    assert [answer.status_code for answer in refused] == [409, 409, 409]
    assert first.status_code == chat.status_code == 200
    assert chat.headers["x-kvactors-agent"] != "ann"
    assert turns[0] == "One."
    assert len(turns) == 2


@pytest.mark.parametrize("end", ["transcript", "export"])
def test_a_name_that_ends_like_what_is_read_of_an_agent_is_refused(
    http: httpx.Client, end: str
) -> None:
    owner, name = spawn(http), f"tom/{end}"

    refused = [
        http.post("/agents", json={"id": name}),
        http.post("/agents", json={"id": name, "from": owner}),
        http.post(f"/agents/{owner}/fork", json={"id": name}),
        http.post(f"/agents/{name}/import", content=b"any"),
    ]
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    chat = http.post("/v1/chat/completions", json=said, headers={"X-Kvactors-Agent": name})

    assert [answer.status_code for answer in (*refused, chat)] == [400] * 5
    assert {answer.json()["error"]["param"] for answer in refused} == {"id"}
    assert chat.json()["error"]["param"] == "x-kvactors-agent"
    assert spawn(http, id=f"a {end}/or two") == f"a {end}/or two"


def test_a_reader_that_goes_away_frees_the_agent(tmp_path: Path) -> None:
    model = FaultyModel()
    with (
        AgentSystem(model, store=tmp_path) as system,
        serve(system, port=0, any_model=True) as server,
        httpx.Client(base_url=server.url, timeout=WAIT) as http,
    ):
        http.post("/agents", json={"id": "ann"})
        body = {"prompt": "One.", "max_tokens": 3000, "stream": True}
        with http.stream("POST", "/agents/ann/turns", json=body) as answer:
            next(answer.iter_lines())
        system.wait_idle(WAIT)
        again = http.post("/agents/ann/turns", json={"prompt": "Two.", "max_tokens": 2})
        turns = system.spawn("ann").transcript().turns

    assert again.status_code == 200
    assert turns[1].finish == "cancelled"


def test_a_key_sees_only_its_own_agents(tmp_path: Path) -> None:
    keys = ("a" * 20, "b" * 20)
    with (
        AgentSystem(FaultyModel(), store=tmp_path) as system,
        serve(
            system, index=tmp_path / "clients.db", port=0, any_model=True, keys=lambda: keys
        ) as server,
    ):
        system.spawn("program").ask("hello").get()
        one, other = (
            httpx.Client(
                base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=WAIT
            )
            for key in keys
        )
        with one, other:
            spawn(one, id="ann")
            turn(one, "ann", "hello")
            hidden = [
                other.get("/agents/ann"),
                other.get("/agents/program"),
                other.get("/agents/ann/transcript"),
                other.post("/agents/ann/turns", json={"prompt": "?"}),
                other.post("/agents/ann/fork", json={}),
                other.get("/agents/ann/export"),
                other.delete("/agents/ann"),
            ]
            mine, theirs = one.get("/agents").json(), other.get("/agents").json()
            spawn(other, id="ann")
            heard = texts(other, "ann")

    assert [answer.status_code for answer in hidden] == [404] * len(hidden)
    assert [view["id"] for view in mine["agents"]] == ["ann"]
    assert theirs == {"agents": [], "total": 0, "tiers": {}}
    assert heard == []
