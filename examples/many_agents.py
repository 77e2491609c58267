"""Many agents at once: each is told its own fact, then each is asked for it.

    python examples/many_agents.py [--agents 64]

All prompts are sent before the first reply is read. The GPU actor batches them; the agents
share two threads.
"""

import argparse
import time

from kvactors.actors import AgentSystem


def main() -> None:
    """Tell all, ask all, count the right answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=64)
    count = parser.parse_args().agents

    with AgentSystem(store=False, max_batch=16) as system:
        agents = [system.spawn(f"agent {number}") for number in range(count)]
        codes = [str(1000 + 37 * number) for number in range(count)]
        begin = time.perf_counter()
        for agent, code in zip(agents, codes, strict=True):
            agent.tell(f"The code of the garage is {code}.")
        asked = [agent.ask("What is the code of the garage?") for agent in agents]
        replies = [future.get(timeout=600) for future in asked]
        seconds = time.perf_counter() - begin

        right = sum(
            reply.text == f"The code of the garage is {code}."
            for reply, code in zip(replies, codes, strict=True)
        )
        generated = sum(reply.usage.generated_tokens for reply in replies)
        print(f"{right} of {count} agents knew their own code")
        print(f"{2 * count} turns in {seconds:.1f} s: {2 * count / seconds:.1f} turns/s")
        print(f"the answers have {generated} tokens")
        for name, value in system.stats().items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
