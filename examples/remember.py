"""Tell an agent something, end the process, and ask it in another one.

    python examples/remember.py [--store DIR]

The second process restores the agent's KV cache from disk: nothing of what it was told is
computed again.
"""

import argparse
import multiprocessing
import tempfile

from kvactors.actors import AgentSystem

FACTS = (
    "My cat is called Biscuit.",
    "The code of the garage is 4711.",
    "Marta lives in Lisbon.",
    "The meeting is on Friday.",
)
QUESTIONS = (
    "What is my cat called?",
    "What is the code of the garage?",
    "Where does Marta live?",
    "When is the meeting?",
)


def tell(store: str) -> None:
    """First process: leaving the `with` block waits until everything is on disk."""
    with AgentSystem(store=store) as system:
        alice = system.spawn("alice", system_prompt="You answer from memory.")
        for fact in FACTS:
            print(f"told   {fact}  {alice.ask(fact).get(timeout=60).text}")


def ask(store: str) -> None:
    """Second process: the same agent, restored by its id."""
    with AgentSystem(store=store) as system:
        alice = system.spawn("alice")
        for question in QUESTIONS:
            reply = alice.ask(question).get(timeout=60)
            print(
                f"asked  {question}  {reply.text}  ({reply.cache}, "
                f"{reply.usage.reused_tokens} tokens reused, "
                f"{reply.usage.prefilled_tokens} prefilled)"
            )


def main() -> None:
    """Run both, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a directory to keep; default: a temporary one")
    store = parser.parse_args().store
    with tempfile.TemporaryDirectory() as folder:
        for phase in (tell, ask):
            process = multiprocessing.get_context("spawn").Process(
                target=phase, args=(store or folder,)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)
            print(f"process {process.pid} ended\n")


if __name__ == "__main__":
    main()
