"""A turn that was begun again on another node: what was shown stays true, or the stream says so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from seeded import bug, seeded

from kvactors import Cluster
from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.agents.streams import pieces
from kvactors.actors.cluster.protocol.errors import SaidOtherwise
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import NewTokenIds
from kvactors.core.schedule.sampling import Sampling

AGAIN = {"again": True}


def said(text: str, letters: str | None = None) -> dict[str, Any]:
    """Some text, with tokens of these letters, or of its own."""
    tokens = [ord(letter) for letter in (text if letters is None else letters)]
    return {"text": text, "tokens": tokens, "logprobs": [[token, -1.0, []] for token in tokens]}


def pieces_of(*items: dict[str, Any]) -> list[Any]:
    async def found() -> AsyncIterator[dict[str, Any]]:
        for item in items:
            yield item

    async def collect() -> list[Any]:
        return [piece async for piece in pieces(found(), lambda given: given["answer"]["text"])]

    return asyncio.run(collect())


def read(*items: dict[str, Any]) -> list[Any]:
    return [getattr(piece, "text", piece) for piece in pieces_of(*items)]


def test_what_is_said_again_is_shown_once() -> None:
    answer = {"answer": said("a cat")}
    assert read(said("a c"), AGAIN, said("a "), said("cat"), answer) == ["a c", "at", "a cat"]


@pytest.mark.parametrize(
    "again",
    [
        [AGAIN, said("a cat")],
        [AGAIN, said("a "), said("", "ca"), AGAIN, said("a c"), said("at", "at")],
        [AGAIN, said("", "a cat"), said("a cat", "")],
        [AGAIN],
    ],
)
def test_its_tokens_are_shown_once_too(again: list[dict[str, Any]]) -> None:
    *shown, _reply = pieces_of(said("a c"), *again, {"answer": said("a cat")})

    assert "".join(chr(token) for piece in shown for token in piece.token_ids) == "a cat"
    assert [[item.token for item in piece.logprobs] for piece in shown] == [
        list(piece.token_ids) for piece in shown
    ]


@pytest.mark.parametrize(
    "others",
    [
        [said("a dog"), {"answer": said("a dog")}],
        [{"answer": said("a dog")}],
        [said("a"), {"answer": said("a")}],
    ],
)
def test_a_replica_that_says_otherwise_ends_the_stream(others: list[dict[str, Any]]) -> None:
    with pytest.raises(SaidOtherwise):
        read(said("a c"), AGAIN, *others)


def shown(*tokens: int) -> dict[str, Any]:
    return {"tokens": list(tokens)}


def answered(*tokens: int) -> dict[str, Any]:
    return {"answer": shown(*tokens)}


@pytest.mark.parametrize(
    ("items", "true"),
    [
        ([shown(1, 2), AGAIN, shown(1), shown(2, 3), answered(1, 2, 3)], True),
        ([shown(1, 2), AGAIN, answered(1, 2, 3)], True),
        ([shown(1, 2), AGAIN, answered(1, 3, 3)], False),
        ([shown(1, 2), AGAIN, shown(1), answered(1)], False),
        ([shown(1, 2), AGAIN, answered()], False),
    ],
)
def test_a_front_end_is_told_where_the_answer_is_not_what_it_was_shown(
    open_cluster: Callable[[], Cluster], items: list[dict[str, Any]], *, true: bool
) -> None:
    @bug(Asking, "items")
    def of_two_nodes(_true: Any) -> Any:
        async def found(*_: Any) -> AsyncIterator[dict[str, Any]]:
            for item in items:
                yield item

        return found

    @bug(Asking, "reply")
    def of_tokens(_true: Any) -> Any:
        return lambda _asking, _request, given: given["answer"]["tokens"]

    front = open_cluster().front()
    agent = front.spawn("ada")
    with seeded(of_two_nodes), seeded(of_tokens):
        ticket = agent.open_turn(
            TurnOptions(NewTokenIds((1, 2), front.info), Sampling(max_tokens=4))
        )
        if true:
            assert ticket.reply.get(timeout=60) == [1, 2, 3]
            return
        with pytest.raises(SaidOtherwise):
            ticket.reply.get(timeout=60)
