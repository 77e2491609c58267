"""Many agents at once: each is told its own fact, then each is asked for it.

    python examples/many_agents.py [--agents 64]

All prompts are sent before the first reply is read. The GPU actor batches them; the agents
share two threads.
"""

import argparse
import time
from collections.abc import Sequence
from statistics import median

from kvactors.actors import AgentSystem, Reply

ROW = "{:6} {:>6} {:>10} {:>10} {:>10} {:>22} {:>12}"


def row(name: str, replies: Sequence[Reply]) -> str:
    """One line of the table: what these turns took, all together."""
    waits = [1000 * reply.timing.first_token for reply in replies]
    return ROW.format(
        name,
        f"{len(replies):,}",
        f"{sum(reply.usage.reused_tokens for reply in replies):,}",
        f"{sum(reply.usage.prefilled_tokens for reply in replies):,}",
        f"{sum(reply.usage.generated_tokens for reply in replies):,}",
        f"{median(waits):,.0f}",
        f"{max(waits):,.0f}",
    )


def main() -> None:
    """Tell all, ask all, count the right answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=64)
    count = parser.parse_args().agents

    with AgentSystem(store=False, max_batch=16) as system:
        agents = [system.spawn(f"agent {number}") for number in range(count)]
        codes = [str(1000 + 37 * number) for number in range(count)]
        begin = time.perf_counter()
        facts = [f"The code of the garage is {code}." for code in codes]
        telling = [agent.ask(fact) for agent, fact in zip(agents, facts, strict=True)]
        asking = [agent.ask("What is the code of the garage?") for agent in agents]
        told = [future.get(timeout=600) for future in telling]
        asked = [future.get(timeout=600) for future in asking]
        seconds = time.perf_counter() - begin
        hot = system.stats()["hot_bytes"]

    print(
        ROW.format(
            "", "turns", "reused", "prefilled", "generated", "median to first, ms", "slowest"
        )
    )
    print(row("told", told))
    print(row("asked", asked))
    right = sum(reply.text == fact for reply, fact in zip(asked, facts, strict=True))
    print(f"\n{right} of {count} agents knew their own code")
    print(f"{2 * count:,} turns in {seconds:.1f} s: {2 * count / seconds:.1f} turns/s")
    print(f"{hot:,} bytes of KV in memory at the end")


if __name__ == "__main__":
    main()
