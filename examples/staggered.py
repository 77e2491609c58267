"""Agents arrive while others decode; who waits how long?

    python examples/staggered.py [--busy 4] [--turns 20] [--arrivals 6]

A few busy agents always have a question waiting. Newcomers arrive in between, one of them
with a long text to read first. A newcomer joins the batch at its next step, and a long text
is read in chunks, between which the others go on.
"""

import argparse
import time

from kvactors.actors import AgentSystem, Reply

FACT = "The code of the garage is 4711."
QUESTION = "What is the code of the garage?"
PAUSE = 0.1


def main() -> None:
    """Start the busy agents, let newcomers arrive, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--arrivals", type=int, default=6)
    parser.add_argument("--long", type=int, default=150, help="sentences of the long text")
    options = parser.parse_args()

    with AgentSystem(store=False) as system:
        begin = time.perf_counter()
        busy = []
        for number in range(options.busy):
            agent = system.spawn(f"busy {number}")
            agent.tell(FACT)
            busy.append([agent.ask(QUESTION) for _ in range(options.turns)])

        newcomers = []
        for number in range(options.arrivals):
            time.sleep(PAUSE)
            reads = number == options.arrivals // 2
            agent = system.spawn(f"{'reader' if reads else 'newcomer'} {number}")
            prompt = " ".join([FACT] * (options.long if reads else 1))
            newcomers.append((agent, time.perf_counter() - begin, agent.ask(prompt)))

        print("agent          arrived  read  queued  first token  total")
        for agent, arrived, future in newcomers:
            show(agent.agent_id, arrived, future.get(timeout=600))
        last = [futures[-1].get(timeout=600).timing for futures in busy]
        print(f"the busy agents were done after {max(timing.total for timing in last):.2f} s")


def show(name: str, arrived: float, reply: Reply) -> None:
    """One line: seconds when it came, tokens it read, and what it waited for, in ms."""
    timing = reply.timing
    print(
        f"{name:13} {arrived:6.2f} s {reply.usage.prefilled_tokens:5}"
        f" {1000 * timing.queued:4.0f} ms"
        f" {1000 * timing.first_token:9.0f} ms {1000 * timing.total:3.0f} ms"
    )


if __name__ == "__main__":
    main()
