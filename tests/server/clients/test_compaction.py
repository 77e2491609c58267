"""What Codex, and OpenCode over `/responses`, sent while their contexts were full, sent again: they
let the model sum up what was said, and go on behind the summary."""

import itertools
import json
import re

import pytest
from recorded import RECORDED, Heard, read, send_again

BLOCK = 256
CLIENTS = ("codex_compaction", "opencode_responses")


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """The name of a recording."""
    return str(request.param)


@pytest.fixture(scope="module")
def heard(client: str, tmp_path_factory: pytest.TempPathFactory) -> list[Heard]:
    """All that came of its requests."""
    return list(send_again(read(client), tmp_path_factory.mktemp(client)))


def summing_up(heard: list[Heard]) -> int:
    """The place of the request that asks for a summary."""
    said = [json.dumps(one.exchange["body"]["input"][-1]).lower() for one in heard]
    tools = [bool(one.exchange["body"].get("tools")) for one in heard]
    (place,) = [n for n, text in enumerate(said) if "summary" in text and not tools[n]]
    return place


def test_each_stream_ends_with_what_its_client_waits_for(heard: list[Heard]) -> None:
    for one in heard:
        assert one.events[-1]["type"] == "response.completed"
        assert one.events[-1]["response"]["usage"]["output_tokens"] > 0


def test_a_history_that_is_summed_up_by_its_own_client_is_known(
    client: str, heard: list[Heard]
) -> None:
    place = summing_up(heard)
    asked, before = heard[place], heard[place - 1]

    if client == "codex_compaction":
        # It sends all that was said, and a question behind it.
        assert "goes on" in asked.how
        assert asked.cached >= before.prompt - BLOCK
    else:
        # It sends the history as a text, to another system prompt.
        assert asked.agent != before.agent


def test_behind_the_summary_the_beginning_is_known(heard: list[Heard]) -> None:
    place = summing_up(heard)
    first = next(one for one in heard if one.exchange["body"].get("tools"))

    after = heard[place + 1]

    assert after.cached >= first.prompt - 2 * BLOCK


def test_what_follows_goes_on(heard: list[Heard]) -> None:
    later = heard[summing_up(heard) + 1 :]

    assert len(later) > 1
    for before, one in itertools.pairwise(later):
        assert one.agent == before.agent
        assert one.cached >= before.prompt - BLOCK


def test_nothing_of_the_machine_is_in_a_recording(client: str) -> None:
    text = (RECORDED / f"{client}.json").read_text(encoding="utf-8")

    places = set(re.findall(r"/(?:home|root|tmp|work)/[\w./-]*", text))
    assert places <= set(re.findall(r"/home/user[\w./-]*", text))
    assert len(text) < 50_000
