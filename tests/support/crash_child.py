"""A process under load that says what it was promised, until it is killed.

Usage: crash_child.py STORE SEED. Prints one JSON line per settled future: the agent, how many
turns its transcript has, and whether `durable` or `cached` resolved.
"""

import json
import sys
import threading
from typing import Any

from kvactors.core import blas

blas.preload()

from kvactors.actors import Agent, AgentSystem, Reply, Sampling  # noqa: E402
from kvactors.core.testing.models import PlainTokenizer, tiny_model  # noqa: E402

AGENTS = 4
_say = threading.Lock()


def crash_model() -> tuple[Any, PlainTokenizer]:
    """Small enough that a turn takes milliseconds."""
    return tiny_model(seed=1, num_hidden_layers=1), PlainTokenizer()


def say(**line: Any) -> None:
    with _say:
        print(json.dumps(line), flush=True)


def talk(agent: Agent, seed: int) -> None:
    for turn in range(10_000):
        prompt = [1 + (seed + turn + i) % 127 for i in range(5 + 37 * (turn % 5))]
        if sum(len(t.token_ids) for t in agent.transcript().turns) > 7000:
            return
        reply: Reply = agent.ask(prompt, sampling=Sampling(max_tokens=6)).get()
        turns = len(agent.transcript().turns)
        tokens = len(agent.transcript().token_ids)
        threading.Thread(target=watch, args=(agent.agent_id, turns, tokens, reply)).start()


def watch(agent_id: str, turns: int, tokens: int, reply: Reply) -> None:
    reply.durable.get()
    say(agent=agent_id, turns=turns, tokens=tokens, what="durable")
    reply.cached.get()
    say(agent=agent_id, turns=turns, tokens=tokens, what="cached")


def main() -> None:
    store, seed = sys.argv[1], int(sys.argv[2])
    with AgentSystem(crash_model, store=store) as system:
        say(what="ready")
        threads = [
            threading.Thread(target=talk, args=(system.spawn(f"agent {i}"), seed + i))
            for i in range(AGENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
