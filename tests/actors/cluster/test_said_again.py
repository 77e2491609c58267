"""A turn that was begun again on another node: what was shown stays true, or the stream says so."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvactors.actors.cluster.agents.streams import pieces
from kvactors.actors.cluster.protocol.errors import SaidOtherwise

AGAIN = {"again": True}


def said(text: str) -> dict[str, Any]:
    return {"text": text, "tokens": [ord(letter) for letter in text]}


def read(*items: dict[str, Any]) -> list[Any]:
    async def found() -> AsyncIterator[dict[str, Any]]:
        for item in items:
            yield item

    async def collect() -> list[Any]:
        shown = pieces(found(), lambda given: given["answer"]["text"])
        return [getattr(piece, "text", piece) async for piece in shown]

    return asyncio.run(collect())


def test_what_is_said_again_is_shown_once() -> None:
    answer = {"answer": {"text": "a cat"}}
    assert read(said("a c"), AGAIN, said("a "), said("cat"), answer) == ["a c", "at", "a cat"]


@pytest.mark.parametrize(
    "others",
    [
        [said("a dog"), {"answer": {"text": "a dog"}}],
        [{"answer": {"text": "a dog"}}],
        [said("a"), {"answer": {"text": "a"}}],
    ],
)
def test_a_replica_that_says_otherwise_ends_the_stream(others: list[dict[str, Any]]) -> None:
    with pytest.raises(SaidOtherwise):
        read(said("a c"), AGAIN, *others)
