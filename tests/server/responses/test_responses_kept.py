"""What is asked back by its id: responses, their input, conversations; also after a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from responding import ASKED, GREEDY, TOLD, ask, cached

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_a_response_is_given_again_as_it_was(client: Any) -> None:
    given = ask(client, TOLD)

    assert client.responses.retrieve(given.id).model_dump() == given.model_dump()


def test_a_response_that_was_streamed_is_kept_as_it_was_told(client: Any) -> None:
    *_, last = ask(client, TOLD, stream=True)

    assert client.responses.retrieve(last.response.id) == last.response


def test_what_is_deleted_is_no_more(client: Any) -> None:
    given = ask(client, TOLD)

    client.responses.delete(given.id)

    with pytest.raises(openai.NotFoundError, match=given.id):
        client.responses.retrieve(given.id)
    with pytest.raises(openai.NotFoundError, match=given.id):
        client.responses.delete(given.id)
    with pytest.raises(openai.NotFoundError, match=given.id):
        ask(client, ASKED, previous_response_id=given.id)


def test_what_is_not_to_be_stored_cannot_be_gone_on(client: Any) -> None:
    given = ask(client, TOLD, store=False)

    assert given.store is False
    with pytest.raises(openai.NotFoundError, match="store: false keeps none") as caught:
        ask(client, ASKED, previous_response_id=given.id)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(given.id)


def test_the_input_of_a_response_comes_in_pages(client: Any) -> None:
    items = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
    ]
    response = ask(client, items)

    page = client.responses.input_items.list(response.id, order="asc", limit=2)

    assert page.has_more
    kinds = [item.type for item in page]
    assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
    newest = next(iter(client.responses.input_items.list(response.id)))
    assert newest.content[0].text == "Thanks."
    assert len({item.id for item in client.responses.input_items.list(response.id)}) == 5
    with pytest.raises(openai.BadRequestError, match="after"):
        client.responses.input_items.list(response.id, after="nobody")


def test_a_bad_page_names_the_field(server: Server, client: Any) -> None:
    response = ask(client, TOLD)

    answer = httpx.get(f"{server.url}/v1/responses/{response.id}/input_items?limit=many")

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "limit"


def test_a_conversation_holds_what_was_asked_and_answered(client: Any) -> None:
    conversation = client.conversations.create(
        metadata={"topic": "cats"}, items=[{"role": "user", "content": TOLD}]
    )

    first = ask(client, "Is that clear?", conversation=conversation.id)
    second = ask(client, ASKED, conversation={"id": conversation.id})

    assert first.conversation.id == conversation.id
    assert "Tom" in second.output_text
    assert cached(second) > 0.5 * second.usage.input_tokens
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    said = [item.content[0].text for item in items]
    assert said == [TOLD, "Is that clear?", first.output_text, ASKED, second.output_text]
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "cats"}


def test_a_conversation_is_changed_and_deleted(client: Any) -> None:
    conversation = client.conversations.create()
    added = client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": n} for n in ("one", "two")]
    )
    one, two = added.data

    assert client.conversations.items.retrieve(one.id, conversation_id=conversation.id) == one
    client.conversations.items.delete(one.id, conversation_id=conversation.id)
    assert list(client.conversations.items.list(conversation.id)) == [two]
    changed = client.conversations.update(conversation.id, metadata={"a": "b"})
    assert changed.metadata == {"a": "b"}
    assert client.conversations.delete(conversation.id).deleted
    its = conversation.id
    gone: list[Callable[[], Any]] = [
        lambda: client.conversations.retrieve(its),
        lambda: client.conversations.items.list(its),
        lambda: client.conversations.items.delete(two.id, conversation_id=its),
        lambda: ask(client, ASKED, conversation=its),
    ]
    for call in gone:
        with pytest.raises(openai.NotFoundError, match=its):
            call()


def test_a_response_is_no_conversation(client: Any) -> None:
    response, conversation = ask(client, TOLD), client.conversations.create()

    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(conversation.id)


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    with (
        AgentSystem(store=tmp_path) as system,
        serve(system, index=tmp_path / "clients.db", port=0) as server,
        client_of(server) as client,
    ):
        conversation = client.conversations.create(items=[{"role": "user", "content": TOLD}])
        first = ask(client, TOLD, instructions="You survive.")
    with (
        AgentSystem(store=tmp_path) as system,
        serve(system, index=tmp_path / "clients.db", port=0) as server,
        client_of(server) as client,
    ):
        second = ask(client, ASKED, previous_response_id=first.id)

        assert "Tom" in second.output_text
        assert cached(second) > 0.5 * second.usage.input_tokens
        assert client.responses.retrieve(first.id) == first
        assert "Tom" in ask(client, ASKED, conversation=conversation.id).output_text


def test_items_may_be_named_instead_of_sent_again(client: Any) -> None:
    first = ask(client, [{"role": "user", "content": TOLD}], instructions="You are named.")
    (asked,) = client.responses.input_items.list(first.id).data
    names = [{"type": "item_reference", "id": item.id} for item in (asked, *first.output)]

    second = ask(
        client, [*names, {"role": "user", "content": ASKED}], instructions="You are named."
    )

    assert "Tom" in second.output_text
    assert cached(second) >= first.usage.total_tokens - 2
    kept = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in kept] == ["message"] * 3
    assert kept[0].content[0].text == TOLD


def test_of_what_a_conversation_holds_items_are_named_too(client: Any) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": TOLD}])
    (told,) = client.conversations.items.list(conversation.id).data

    answer = ask(client, [{"id": told.id}, {"role": "user", "content": ASKED}])

    assert "Tom" in answer.output_text


@pytest.mark.parametrize("name", ["msg_0_1", "", "msg", 5])
def test_an_item_that_nobody_keeps_is_named(client: Any, name: Any) -> None:
    with pytest.raises(openai.APIStatusError, match=r"input\.1\.id") as caught:
        ask(client, [{"role": "user", "content": TOLD}, {"type": "item_reference", "id": name}])

    assert caught.value.status_code == (400 if name == 5 else 404)


def test_a_forgotten_agent_is_a_clear_404(client: Any, server: Server) -> None:
    raw = client.responses.with_raw_response.create(input=TOLD, instructions="Gone.", **GREEDY)
    response, agent = raw.parse(), raw.headers["x-kvactors-agent"]
    server.service.system.forget(agent)

    with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
        ask(client, ASKED, previous_response_id=response.id)


def test_a_key_never_reaches_what_another_one_keeps(system: AgentSystem, tmp_path: Path) -> None:
    index = tmp_path / "clients.db"
    with (
        serve(system, port=0, index=index, keys=lambda: ("one", "two")) as server,
        client_of(server, "one") as mine,
        client_of(server, "two") as other,
    ):
        response, conversation = ask(mine, TOLD), mine.conversations.create()

        assert mine.responses.retrieve(response.id).id == response.id
        for reach in (
            lambda: other.responses.retrieve(response.id),
            lambda: other.responses.delete(response.id),
            lambda: other.responses.input_items.list(response.id),
            lambda: other.conversations.items.list(conversation.id),
            lambda: ask(other, ASKED, previous_response_id=response.id),
            lambda: ask(other, ASKED, conversation=conversation.id),
            lambda: ask(other, [{"type": "item_reference", "id": response.output[0].id}]),
        ):
            with pytest.raises(openai.NotFoundError):
                reach()
