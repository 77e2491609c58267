"""Transcripts of each version of the ledger's records, as engines of that version wrote them.

A test that fails here means that memories in the field would be lost. Never regenerate the files.
"""

import shutil
from pathlib import Path

import pytest

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.conversation.transcript import READABLE_VERSIONS
from kvactors.core.testing.models import tiny_llama

GOLDEN = Path(__file__).parents[2] / "golden"
BEGINNING = "Be brief.My cat is called Biscuit. "
CAT = [("user", "My cat is called Biscuit. 🐈"), ("assistant", "r/:F?")]
EXPECTED = {
    1: [*CAT, ("user", "And my dog?"), ("assistant", "Pi\x10\x16s")],
    # The question about the dog was taken back.
    2: [*CAT, ("user", "And my fish?"), ("assistant", "D6F\x1a?")],
}


def test_every_version_that_is_read_has_a_golden_ledger() -> None:
    assert tuple(EXPECTED) == READABLE_VERSIONS


@pytest.mark.parametrize("version", EXPECTED)
def test_a_ledger_of_an_older_version_is_read_and_goes_on(version: int, tmp_path: Path) -> None:
    store = shutil.copytree(GOLDEN / f"records-v{version}", tmp_path / "store")

    with AgentSystem(tiny_llama(), store=store, model_name="golden") as system:
        alice = system.spawn("alice", system_prompt="Be brief.")
        before = alice.transcript()
        reply = alice.ask("And now?", sampling=Sampling(max_tokens=3)).get(timeout=60)
        assert reply.durable.get(timeout=60)

    assert [(turn.role, turn.text) for turn in before.turns] == EXPECTED[version]
    assert bytes(before.token_ids[: len(BEGINNING)]).decode() == BEGINNING
    assert reply.usage.prefilled_tokens >= len(before.token_ids)
    assert reply.usage.retokenized_tokens == 0
