"""`kvactors serve` as a process: it ends in order when told to, and loses nothing when killed."""

import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from samples import DAY, FULL
from serving import COMMAND, ask, serving

WAIT = 120
BLOCK = 256


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(answer: httpx.Response) -> dict[str, str]:
    return {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_finishes_what_runs_and_ends_well(tmp_path: Path, number: int) -> None:
    answers = []
    with serving(tmp_path) as (process, url):
        asking = threading.Thread(
            target=lambda: answers.append(ask(url, [user("Count to one thousand.")]))
        )
        asking.start()
        while "kvactors_open_turns 1.0" not in httpx.get(f"{url}/metrics").text and not answers:
            time.sleep(0.005)
        process.send_signal(number)
        assert process.wait(WAIT) == 0
        asking.join(WAIT)

    assert [answer.status_code for answer in answers] == [200]


@pytest.mark.slow
def test_a_conversation_is_warm_in_the_next_process(tmp_path: Path) -> None:
    messages = [user("My cat is called Tom. Remember that. " + "More. " * 200)]
    with serving(tmp_path) as (process, url):
        messages += [assistant(ask(url, messages)), user("What is my cat called?")]
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT)

    with serving(tmp_path) as (_, url):
        answer = ask(url, messages)

    usage = answer.json()["usage"]
    assert "Tom" in assistant(answer)["content"]
    assert "goes on" in answer.headers["x-kvactors-reused"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]


@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_when_it_is_killed(tmp_path: Path) -> None:
    """Kills at random moments of a conversation that goes on; the day draws the moments."""
    moments, safe = Random(f"{DAY} kills of a server"), 0
    messages = [user("My cat is called Tom. Remember that. " + "More. " * 200)]
    for _ in range(200 if FULL else 2):
        with serving(tmp_path) as (process, url):
            answer = ask(url, messages)
            usage = answer.json()["usage"]
            # What was on disk is warm, but for the block that the kill left open.
            assert usage["prompt_tokens_details"]["cached_tokens"] >= safe - BLOCK
            assert "new" not in answer.headers["x-kvactors-reused"] or not safe
            messages += [assistant(answer), user("Say it again.")]
            wait_until_saved(url)
            safe = usage["total_tokens"]
            killer = threading.Timer(moments.random() * 0.3, process.kill)
            killer.start()
            with suppress(httpx.HTTPError):
                while True:
                    answer = ask(url, messages)
                    messages += [assistant(answer), user("And again.")]
            killer.join()


def wait_until_saved(url: str) -> None:
    """Return when nothing waits for the disk."""
    while httpx.get(f"{url}/health").json()["unsaved_bytes"]:
        time.sleep(0.02)


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*COMMAND, "--store", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=WAIT,
        )

    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr
    assert ended.stderr.count("\n") <= 2
