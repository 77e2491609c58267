"""What a model thinks before it answers."""

from pathlib import Path

import pytest
from puppets import Messages, puppet_server, thinking

from kvactors.actors.testing import PuppetModel

SAID = ["<think>Is it?</think>It is.", "<think>Is it still?</think>It still is."]
ASKED = [{"role": "user", "content": "Is it?"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_turned_thinking_off_is_told_no_thoughts(
    tmp_path: Path, stream: bool
) -> None:
    messages = Messages(stream)
    with puppet_server(PuppetModel(SAID, tokenizer=thinking), tmp_path) as server:
        first = messages(server, ASKED, thinking={"type": "disabled"})
        second = messages(server, [*ASKED, first.message, *ASKED])

    assert (first.text, first.thought) == ("It is.", "")
    assert (second.text, second.thought) == ("It still is.", "Is it still?")
    assert second.cached > first.prompt
