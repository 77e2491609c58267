"""A process under load that says what it was promised, until it is killed: it never ends.

Usage: crash_child.py STORE SEED. Prints one JSON line per settled future: the agent, how many
turns its transcript has, and whether `durable` or `cached` resolved.
"""

import json
import sys
import threading
from itertools import count
from typing import Any

from kvactors.core import blas

blas.preload()

from kvactors.actors import AgentSystem, Reply, Sampling  # noqa: E402
from kvactors.core.testing.models import PlainTokenizer, tiny_model  # noqa: E402

AGENTS = 4
FULL = 7000
_say = threading.Lock()


def crash_model() -> tuple[Any, PlainTokenizer]:
    """Small enough that a turn takes milliseconds."""
    return tiny_model(seed=1, num_hidden_layers=1), PlainTokenizer()


def say(**line: Any) -> None:
    with _say:
        print(json.dumps(line), flush=True)


def talk(system: AgentSystem, number: int, seed: int) -> None:
    """Turns of one agent after the other, each until it is nearly full: there is always another."""
    for life in count():
        agent = system.spawn(f"agent {number}.{life}")
        turn = 0
        while len(agent.transcript().token_ids) <= FULL:
            prompt = [1 + (seed + turn + i) % 127 for i in range(5 + 37 * (turn % 5))]
            reply: Reply = agent.ask(prompt, sampling=Sampling(max_tokens=6)).get()
            held = agent.transcript()
            told = (agent.agent_id, len(held.turns), len(held.token_ids), reply)
            threading.Thread(target=watch, args=told).start()
            turn += 1


def watch(agent_id: str, turns: int, tokens: int, reply: Reply) -> None:
    reply.durable.get()
    say(agent=agent_id, turns=turns, tokens=tokens, what="durable")
    reply.cached.get()
    say(agent=agent_id, turns=turns, tokens=tokens, what="cached")


def main() -> None:
    store, seed = sys.argv[1], int(sys.argv[2])
    with AgentSystem(crash_model, store=store) as system:
        say(what="ready")
        threads = [threading.Thread(target=talk, args=(system, i, seed + i)) for i in range(AGENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
