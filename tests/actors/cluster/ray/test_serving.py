"""`kvactors serve` on three nodes, of which one is killed."""

import signal
from pathlib import Path

from nodes import Nodes
from serving import ask, serving
from waiting import eventually

WAIT = 120
TOLD = {"role": "user", "content": "My cat is called Tom. Remember that."}
ASKED = {"role": "user", "content": "What is my cat called?"}


def test_a_clients_conversation_goes_on_where_its_agent_does(three: Nodes, tmp_path: Path) -> None:
    key = str(three.folder / "key")
    with serving(tmp_path, "--cluster", three.address, KVACTORS_KEY_FILE=key) as (process, url):
        first = ask(url, [TOLD])
        agent = first.headers["x-kvactors-agent"]
        eventually(lambda: three.cluster.place(agent).replica is not None)
        owner = three.cluster.place(agent).node

        three.kill_past_lease(owner)
        said = {"role": "assistant", "content": first.json()["choices"][0]["message"]["content"]}
        second = ask(url, [TOLD, said, ASKED])

        assert second.headers["x-kvactors-agent"] == agent
        assert "Tom" in second.json()["choices"][0]["message"]["content"]
        assert three.cluster.place(agent).node != owner
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 0
    eventually(lambda: owner in three.alive())


def test_what_its_nodes_have_is_not_the_servers_to_choose(three: Nodes, tmp_path: Path) -> None:
    done = three.command(
        "serve", "--cluster", three.address, "--model", "other", "--context", "4096",
        "--keep-bytes", "1GB", "--store", str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 2
    assert "--context, --keep-bytes, --model" in done.stderr
