"""Nodes of Ray, with a key, into an object store, and what comes out of it."""

from pathlib import Path

from nodes import Nodes
from together import Together

from kvactors.actors.cluster.cluster import Cluster
from kvactors.core.schedule.sampling import Sampling
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import restore

WAIT = 60
KEY = b"k" * 32
HOMES = {"anna": "one", "bert": "two", "clio": "three"}
QUESTION = "What is my cat called?"
SCORED = Sampling(max_tokens=12, top_logprobs=3)


def said(cluster: Cluster) -> dict[str, object]:
    """What each answers, to the last bit."""
    found: dict[str, object] = {}
    for agent in (*HOMES, "fork of anna"):
        speaker = cluster.find(agent)
        assert speaker is not None
        reply = speaker.ask(QUESTION, sampling=SCORED).get(timeout=WAIT)
        assert reply.text == "Your cat is called Biscuit."
        found[agent] = reply.token_ids, reply.logprobs, reply.usage.prompt_tokens
    return found


def test_what_a_command_backed_up_of_several_nodes_says_the_same_in_another_cluster(
    three: Nodes, tmp_path: Path
) -> None:
    for name, node in HOMES.items():
        agent = three.cluster.spawn(name, system_prompt="You answer from memory.")
        three.cluster.migrate(agent, node)
        reply = agent.ask("My cat is called Biscuit.").get(timeout=WAIT)
        assert reply.durable.get(timeout=WAIT)
        assert reply.cached.get(timeout=WAIT)
    three.cluster.spawn("fork of anna", from_="anna")
    url = (tmp_path / "objects").as_uri()

    done = three.command("cluster", "backup", url, "--address", three.address)

    assert done.returncode == 0, done.stderr
    before = said(three.cluster)
    for part in (1, 2):
        assert restore(open_objects(url), tmp_path / f"m{part}", part=(part, 2))
    other = Together(tmp_path, "m1", "m2", key=KEY)
    try:
        assert said(other.cluster) == before
    finally:
        other.close()
