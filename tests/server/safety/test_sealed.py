"""Where the store is encrypted, nothing that was said lies beside it in the clear."""

import secrets
from pathlib import Path

import openai
import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.testing import FaultyModel

SECRET = "the treasure lies under the oak"
BRANCH = "gitStatus: on a branch that is called oak"


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_index_of_an_encrypted_store_has_nothing_in_the_clear(
    tmp_path: Path, *, encrypted: bool
) -> None:
    key = secrets.token_bytes(32) if encrypted else None
    with (
        AgentSystem(FaultyModel(), store=tmp_path, encryption_key=key) as system,
        serve(
            system, index=tmp_path / "clients.db", port=0, any_model=True, encryption_key=key
        ) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        # Greedy: a drawn end would complete it.
        first = client.responses.create(
            model="any", input=SECRET, max_output_tokens=4, temperature=0
        )
        given = client.responses.input_items.list(first.id).data
        again = client.responses.create(
            model="any",
            input="more",
            previous_response_id=first.id,
            max_output_tokens=4,
            temperature=0,
        )
        other = client.responses.with_raw_response.create(
            model="any", input="the oak", max_output_tokens=4
        )
        client.responses.create(
            model="any", input="hello", instructions=f"Dig.\n\n{BRANCH}", max_output_tokens=4
        )
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]

    assert SECRET in str(given)
    assert again.status == "incomplete"
    assert "'treasure l'" in other.headers["x-kvactors-miss"]
    for secret in (SECRET, BRANCH):
        assert any(secret.encode() in content for content in files) is not encrypted
