"""The stress test: random work on a small budget, with faults, and what must hold at the end.

Every prompt says whose it is and where it stands (`kvactors.actors.frontends.stress.prompts`). So a
transcript shows whether the order was kept, and whether anything of another agent is in it. What
was generated is proved by `kvactors.actors.frontends.stress.oracle`.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.errors import StorageError
from kvactors.actors.frontends.stress.prompts import (
    DurableLog,
    digits,
    last_number,
    misforked,
    misplaced,
    read_log,
    secret,
)
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.testing import FailingFiles, FaultyModel, use_disk
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import AdmissionFull, MailboxFull, SystemStopped, TurnFailed, TurnTimeout
from kvactors.core.schedule.sampling import Sampling

__all__ = ["CHOICES", "FAULTS", "Stress"]

FAULTS = ("model", "device", "disk", "restart", "kill")
CHOICES = ("\x05\x06", "\x05\x06\x07", "\x08")
BUDGET = 5_500_000
LONGEST = 2500
MODEL_FAILED = "the model failed (injected)"
DEVICE_LOST = "Command buffer execution failed (injected)"
# How a turn may end besides with a reply.
ALLOWED = (AdmissionFull, MailboxFull, StorageError, SystemStopped, TurnFailed, TurnTimeout)


class Faults:
    """What breaks: the model, the device under it, the disk."""

    def __init__(self, random: Random) -> None:
        self.model = FaultyModel()
        self.disk = FailingFiles(name="*")
        self.disk.armed = False
        self._random = random
        self._next_device_fault = 0.0

    def break_model(self) -> None:
        """A step of it fails soon."""
        self.model.arm(step=self._random.randrange(8), error=RuntimeError(MODEL_FAILED))

    def break_device(self) -> None:
        """The device is lost; the engine gives up one that is lost too often."""
        if time.monotonic() > self._next_device_fault:
            self._next_device_fault = time.monotonic() + 15
            self.model.arm(step=self._random.randrange(8), error=RuntimeError(DEVICE_LOST))

    def toggle_disk(self) -> None:
        """It is full from now on, or no more."""
        self.disk.armed = not self.disk.armed


class Stress:
    """One process's part of a stress test: so many `agents` in a `store`, by `seed`, with these
    `faults`; `log` gets a line for each durable turn, `deterministic` as AgentSystem has it."""

    def __init__(
        self,
        seed: int,
        agents: int,
        faults: frozenset[str],
        store: Path,
        log: Path | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.worst_wait = 0.0
        self.most_memory = 0.0
        self._random = Random(seed)
        self._chosen = faults - {"kill"}
        self._faults = Faults(self._random)
        self._names = [f"agent {number}" for number in range(agents)]
        self._numbers: Counter[str] = Counter()
        self._pending: list[Any] = []
        self._log = None if log is None else DurableLog(log)
        self._store = store
        self._options = {"deterministic": deterministic, "seed": seed}
        self.system = self._open()

    def _open(self) -> AgentSystem:
        options: dict[str, Any] = {
            "max_batch": 4,
            "memory_budget": BUDGET,
            "attention": "packed",
            "prompt_lane": LanePolicy(16),
            "max_waiting": 4 * len(self._names),
        }
        system = AgentSystem(self._faults.model, self._store, **{**options, **self._options})
        use_disk(system, self._faults.disk)
        system.start()
        for name in self._names:
            self._numbers[name] = last_number(system.spawn(name))
        return system

    # -- work --------------------------------------------------------------------------

    def act(self) -> None:
        """One random thing."""
        agent = self.system.spawn(self._random.choice(self._names))
        acts = self._acts()
        [name] = self._random.choices(list(acts), [weight for weight, _ in acts.values()])
        self.counts[name] += 1
        try:
            acts[name][1](agent)
        except ALLOWED as error:
            _count(self.counts, error)
        while len(self._pending) > 6 * len(self._names):
            self._wait_for(self._pending.pop(0))

    def _acts(self) -> dict[str, tuple[int, Callable[[Agent], object]]]:
        """What may be done, how often, and how."""
        acts: dict[str, tuple[int, Callable[[Agent], object]]] = {
            "ask": (60, self.ask),
            "observe": (8, self._observe),
            "cancel": (8, Agent.cancel),
            "prefetch": (4, lambda agent: self.system.prefetch(agent.agent_id)),
            "check": (2, lambda _: self._check()),
        }
        if self._log is None:
            # Not where a kill is to be judged by the last durable turn.
            acts["rewind"] = 4, lambda agent: agent.transcript().turns and agent.rewind(1)
            acts["fork"] = 2, self._fork
            acts["forget"] = 1, self.forget
        faults = {
            "device": lambda _: self._faults.break_device(),
            "disk": lambda _: self._faults.toggle_disk(),
            "model": lambda _: self._faults.break_model(),
            "restart": lambda _: self._restart(),
        }
        return acts | {f"fault_{name}": (1, faults[name]) for name in sorted(self._chosen)}

    def _prompt(self, agent: Agent) -> list[int]:
        name = agent.agent_id
        self._numbers[name] += 1
        body = [self._random.randrange(1, 128) for _ in range(self._random.choice((2, 20, 90)))]
        return [*secret(name), *digits(self._numbers[name]), *body]

    def ask(self, agent: Agent) -> None:
        """A turn; of one that remembers much: forget it."""
        if len(agent.transcript().token_ids) > LONGEST:
            self.forget(agent)
            return
        sampling = Sampling(max_tokens=self._random.randrange(1, 16))
        if self._random.random() < 0.1:
            sampling = Sampling(choices=CHOICES)
        timeout = self._random.choice((0.002, 0.1)) if self._random.random() < 0.1 else None
        priority = self._random.randrange(-1, 2)
        begin = time.monotonic()
        future = agent.ask(
            self._prompt(agent), sampling=sampling, timeout=timeout, priority=priority
        )
        future.on_done(lambda done: self._ended(agent, done, begin))
        self._pending.append(future)

    def _ended(self, agent: Agent, done: Any, begin: float) -> None:
        self.worst_wait = max(self.worst_wait, time.monotonic() - begin)
        log = self._log
        if done.error is not None or log is None:
            return
        # Later turns may have ended already, and need not be durable when this one is.
        reply, name = done.get(), agent.agent_id
        length = reply.usage.prompt_tokens + len(reply.token_ids)
        tokens = agent.transcript().token_ids[:length]

        def note(saved: Any) -> None:
            if saved.error is None:
                log.note(name, tokens)

        reply.durable.on_done(note)

    def _observe(self, agent: Agent) -> None:
        prompt = self._prompt(agent)
        self._pending.append(agent.observe("".join(map(chr, prompt))))

    def _fork(self, agent: Agent) -> None:
        child = f"{agent.agent_id}+"
        if self.system.find(child) is None:
            fork = self.system.spawn(child, from_=agent)
            self._pending.append(told := fork.observe("".join(map(chr, secret(child)))))
            self.system.wait_idle(60)
            self._compare(child, told=told.done and told.error is None)
            self.system.forget(child)

    def _compare(self, child: str, *, told: bool) -> None:
        """A fork knows what it should, its own secret if it was `told`."""
        tokens = self.system.spawn(child).transcript().token_ids
        parent = self.system.spawn(child[:-1]).transcript().token_ids
        self.violations += misforked(child, tokens, parent, told=told)

    def forget(self, agent: Agent) -> None:
        """Delete an agent and spawn it anew."""
        if self._log is not None:
            # What was durable of it is not asked for any more, whenever the kill comes.
            self.settle()
            self._log.note(agent.agent_id, ())
        self.system.forget(agent.agent_id)
        self._numbers[agent.agent_id] = last_number(self.system.spawn(agent.agent_id))

    def _check(self) -> None:
        stats = self.system.stats()
        self.most_memory = max(self.most_memory, stats["used_bytes"] / stats["budget_bytes"])
        self.system.check()

    def _restart(self) -> None:
        self.settle()
        self.counts["rebuilds"] += self.system.health().rebuilds
        before = {name: self.system.spawn(name).transcript() for name in self._names}
        self.system.stop()
        self.system = self._open()
        for name, transcript in before.items():
            if self.system.spawn(name).transcript() != transcript:
                self.violations.append(f"{name}: another transcript after a restart")

    # -- the end -----------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What a live table shows. Not of one that is closed."""
        rebuilds = self.counts["rebuilds"] + self.system.health().rebuilds
        raised = {"raised_disk": len(self._faults.disk.failed), "rebuilds": rebuilds}
        return {
            "counts": {**self.counts, **raised},
            "worst_wait": round(self.worst_wait, 3),
            "most_memory": round(self.most_memory, 3),
            "pending": len(self._pending),
            "violations": self.violations,
        }

    def transcripts(self) -> list[tuple[str, tuple[Turn, ...]]]:
        """Every agent's turns."""
        return [(name, self.system.spawn(name).transcript().turns) for name in self._names]

    def settle(self) -> None:
        """No more faults; everything that was asked has ended."""
        self._faults.disk.armed = False
        for future in self._pending:
            self._wait_for(future)
        self._pending.clear()
        if not self.system.wait_idle(120):
            self.violations.append("not idle after 120 s")
        self.system.check()

    def _wait_for(self, future: Any) -> None:
        try:
            reply = future.get(timeout=120)
            self.counts[getattr(reply, "finish_reason", "done")] += 1
        except ALLOWED as error:
            _count(self.counts, error)
        except Exception as error:
            self.violations.append(f"a turn ended with {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the system; nothing is noted any more."""
        self.system.stop(timeout=60)
        if self._log is not None:
            self._log.close()

    def check_transcripts(self) -> None:
        """Order and isolation: every prompt has its agent's secret, and numbers go up."""
        for name, turns in self.transcripts():
            self.violations += misplaced(name, turns)

    def check_log(self, log: Path) -> None:
        """What was durable before a kill is there after it."""
        for name, length, digest in read_log(log):
            tokens = self.system.spawn(name).transcript().token_ids[:length]
            if len(tokens) < length or tokens_hash(tokens) != digest:
                self.violations.append(f"{name}: lost a durable turn")


def _count(counts: Counter[str], error: Exception) -> None:
    """How something ended, and whether that is what was injected into the model."""
    counts[type(error).__name__] += 1
    counts["raised_model"] += MODEL_FAILED in str(error)
