"""The application in a server of somebody else's: its lifespan is what it does by itself."""

import asyncio
import sqlite3
from pathlib import Path

import httpx
import pytest
from chats import asked, post

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import InvalidConfig


def test_an_application_that_is_mounted_elsewhere_answers_and_ends_with_its_lifespan() -> None:
    async def used() -> httpx.Response:
        app = server.app
        async with app.router.lifespan_context(app):
            asking = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=asking, base_url="http://localhost") as client:
                answer = await client.post("/v1/chat/completions", json=asked("hello"))
            assert not server.service.claims.closing
            server.stop()
            assert not server.service.index.begun("ann"), "running turns end before it is closed"
        return answer

    with AgentSystem(FaultyModel(), store=False, context=4096) as system:
        server = serve(system, any_model=True, grace=1)
        assert asyncio.run(used()).status_code == 200

        assert server.service.claims.closing
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            server.service.index.begun("ann")
        server.stop()


def test_a_second_server_of_a_system_needs_an_index_of_its_own(tmp_path: Path) -> None:
    with AgentSystem(FaultyModel(), store=tmp_path, model_name="m", context=4096) as system:
        with serve(system, port=0, any_model=True) as server:
            with pytest.raises(InvalidConfig, match="index= of its own"):
                serve(system, port=0)
            with pytest.raises(OSError, match="choose another --port"):
                serve(system, port=int(server.url.rpartition(":")[2]), index=tmp_path / "b").start()
            with serve(system, port=0, index=tmp_path / "b", any_model=True) as other:
                assert post(other, asked("hello")).status_code == 200
        with serve(system, port=0, any_model=True) as again:
            assert post(again, asked("hello")).status_code == 200
