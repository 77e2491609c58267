"""The application in a server of somebody else's: its lifespan is what it does by itself."""

import asyncio
import sqlite3

import httpx
import pytest
from chats import asked

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.testing import FaultyModel


def test_an_application_that_is_mounted_elsewhere_answers_and_ends_with_its_lifespan() -> None:
    async def used() -> httpx.Response:
        app = server.app
        async with app.router.lifespan_context(app):
            asking = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=asking, base_url="http://localhost") as client:
                answer = await client.post("/v1/chat/completions", json=asked("hello"))
            assert not server.service.claims.closing
        return answer

    with AgentSystem(FaultyModel(), store=False, context=4096) as system:
        server = serve(system, any_model=True, grace=1)
        assert asyncio.run(used()).status_code == 200

        assert server.service.claims.closing
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            server.service.index.begun("ann")
        server.stop()
