"""The oracle of a stress test: an agent's own transcript, replayed alone, gives its answers.

The model is exact in any order of sums, so what was said in a batch, after evictions, restores,
restarts and faults must be what is said alone, token for token.
"""

from collections.abc import Sequence

from kvactors.actors.frontends.stress.workload import CHOICES
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.testing import FaultyModel
from kvactors.core.conversation.turn import Turn
from kvactors.core.schedule.sampling import Sampling

__all__ = ["replay_alone"]


def replay_alone(transcripts: Sequence[tuple[str, Sequence[Turn]]]) -> tuple[int, list[str]]:
    """Turns that were taken again, and what was not the same."""
    violations: list[str] = []
    checked = 0
    with AgentSystem(FaultyModel(), store=False, attention="packed") as system:
        for name, turns in transcripts:
            agent, prompt = system.spawn(f"{name} alone"), list[int]()
            for turn in turns:
                if not turn.is_answer or not turn.token_ids:
                    prompt += turn.token_ids
                    continue
                reply = agent.ask(prompt, sampling=_sampling(turn)).get(timeout=300)
                checked += 1
                if reply.token_ids != turn.token_ids:
                    violations.append(
                        f"{name}, turn {checked}: {turn.token_ids} alone is {reply.token_ids}"
                    )
                    break
                prompt = []
    return checked, violations


def _sampling(turn: Turn) -> Sampling:
    chosen = {(*map(ord, choice), 0) for choice in CHOICES}
    if turn.token_ids in chosen:
        return Sampling(choices=CHOICES)
    return Sampling(max_tokens=len(turn.token_ids))
