"""The stress test: random work on a small budget, with faults, and what must hold at the end.

Every prompt begins with a secret of its agent and a number that goes up. So a transcript shows
whether the order was kept, and whether anything of another agent is in it. What was generated
is proved by `kvactors.actors.stress_oracle`.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from kvactors.actors.errors import StorageError
from kvactors.actors.handle import Agent
from kvactors.actors.mailbox import LanePolicy, MailboxFull
from kvactors.actors.system import AgentSystem
from kvactors.actors.testing import FailingFiles, FaultyModel, use_disk
from kvactors.core.errors import AdmissionFull, SystemStopped, TurnFailed, TurnTimeout
from kvactors.core.hashing import tokens_hash
from kvactors.core.sampling import Sampling
from kvactors.core.turn import Turn

__all__ = ["CHOICES", "FAULTS", "Stress"]

FAULTS = ("model", "device", "disk", "restart", "kill")
CHOICES = ("\x05\x06", "\x05\x06\x07", "\x08")
BUDGET = 3_000_000
LONGEST = 2500
DEVICE_LOST = "Command buffer execution failed (injected)"
# How a turn may end besides with a reply.
ALLOWED = (AdmissionFull, MailboxFull, StorageError, SystemStopped, TurnFailed, TurnTimeout)


class Stress:
    """One process's part of a stress test; `log` gets a line for each durable turn."""

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
        self._faults = faults - {"kill"}
        self._model = FaultyModel()
        self._disk = FailingFiles(name="*")
        self._disk.armed = False
        self._names = [f"agent {number}" for number in range(agents)]
        self._numbers: Counter[str] = Counter()
        self._pending: list[Any] = []
        self._next_device_fault = 0.0
        self._log = None if log is None else log.open("a", encoding="utf-8")
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
        system = AgentSystem(self._model, self._store, **{**options, **self._options})
        use_disk(system, self._disk)
        system.start()
        for name in self._names:
            self._numbers[name] = last_number(system.spawn(name))
        return system

    # -- work --------------------------------------------------------------------------

    def act(self) -> None:
        """One random thing."""
        agent = self.system.spawn(self._random.choice(self._names))
        acts: list[tuple[int, Callable[[Agent], None]]] = [
            (60, self._ask),
            (8, self._observe),
            (8, self._cancel),
            (4, self._prefetch),
            (2, self._check),
        ]
        if self._log is None:
            # Not where a kill is to be judged by the last durable turn.
            acts += [(4, self._rewind), (2, self._fork), (1, self._forget)]
        acts += [(1, getattr(self, f"_fault_{fault}")) for fault in sorted(self._faults)]
        [act] = self._random.choices([a for _, a in acts], [w for w, _ in acts])
        self.counts[act.__name__.strip("_")] += 1
        try:
            act(agent)
        except ALLOWED as error:
            self.counts[type(error).__name__] += 1
        while len(self._pending) > 6 * len(self._names):
            self._wait_for(self._pending.pop(0))

    def _prompt(self, agent: Agent) -> list[int]:
        name = agent.agent_id
        self._numbers[name] += 1
        body = [self._random.randrange(1, 128) for _ in range(self._random.choice((2, 20, 90)))]
        return [*secret(name), *digits(self._numbers[name]), *body]

    def _ask(self, agent: Agent) -> None:
        if len(agent.transcript().token_ids) > LONGEST:
            self._forget(agent)
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
        if done.error is not None or self._log is None:
            return
        # Later turns may have ended already, and need not be durable when this one is.
        reply = done.get()
        length = reply.usage.prompt_tokens + len(reply.token_ids)
        tokens = agent.transcript().token_ids[:length]
        line = json.dumps([agent.agent_id, len(tokens), tokens_hash(tokens)])
        reply.durable.on_done(lambda saved: self._note(saved, line))

    def _note(self, saved: Any, line: str) -> None:
        if saved.error is None:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._log is not None:
            self._log.write(line + "\n")
            self._log.flush()

    def _observe(self, agent: Agent) -> None:
        prompt = self._prompt(agent)
        self._pending.append(agent.observe("".join(map(chr, prompt))))

    def _cancel(self, agent: Agent) -> None:
        agent.cancel()

    def _prefetch(self, agent: Agent) -> None:
        self.system.prefetch(agent.agent_id)

    def _rewind(self, agent: Agent) -> None:
        if agent.transcript().turns:
            agent.rewind(1)

    def _fork(self, agent: Agent) -> None:
        child = f"{agent.agent_id}+"
        if self.system.find(child) is None and len(child) < 40:
            self.system.spawn(child, from_=agent).observe("".join(map(chr, secret(child))))
            self.system.wait_idle(60)
            self._compare(child)
            self.system.forget(child)

    def _compare(self, child: str) -> None:
        """A fork knows all that its parent knows, and its own secret behind that."""
        tokens = self.system.spawn(child).transcript().token_ids
        parent = self.system.spawn(child[:-1]).transcript().token_ids
        if tokens[: len(parent)] != parent:
            self.violations.append(f"{child}: does not begin as its parent")

    def _forget(self, agent: Agent) -> None:
        if self._log is not None:
            # What was durable of it is not asked for any more, whenever the kill comes.
            self.settle()
            self._write(json.dumps([agent.agent_id, 0, tokens_hash([])]))
        self.system.forget(agent.agent_id)
        self._numbers[agent.agent_id] = last_number(self.system.spawn(agent.agent_id))

    def _check(self, _: Agent) -> None:
        stats = self.system.stats()
        used = stats["hot_bytes"] + stats["active_bytes"] + stats["backlog_bytes"]
        self.most_memory = max(self.most_memory, used / stats["budget_bytes"])
        self.system.check()

    # -- faults ------------------------------------------------------------------------

    def _fault_model(self, _: Agent) -> None:
        self._model.arm(step=self._random.randrange(8), error=RuntimeError("injected"))

    def _fault_device(self, _: Agent) -> None:
        # The engine gives up a device that fails too often.
        if time.monotonic() > self._next_device_fault:
            self._next_device_fault = time.monotonic() + 15
            self._model.arm(step=self._random.randrange(8), error=RuntimeError(DEVICE_LOST))

    def _fault_disk(self, _: Agent) -> None:
        self._disk.armed = not self._disk.armed

    def _fault_restart(self, _: Agent) -> None:
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
        """What a live table shows."""
        return {
            "counts": dict(self.counts),
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
        self._disk.armed = False
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
            self.counts[type(error).__name__] += 1
        except Exception as error:
            self.violations.append(f"a turn ended with {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the system; nothing is noted any more."""
        self.system.stop(timeout=60)
        if self._log is not None:
            self._log.close()

    def check_transcripts(self) -> None:
        """Order and isolation: every prompt has its agent's secret, and numbers go up."""
        for name in self._names:
            last = 0
            for turn in self.system.spawn(name).transcript().turns:
                if turn.is_answer:
                    continue
                number = number_of(turn)
                if list(turn.token_ids[:3]) != secret(name):
                    self.violations.append(f"{name}: holds a prompt of another agent")
                elif number <= last:
                    self.violations.append(f"{name}: prompt {number} came after {last}")
                last = number

    def check_log(self, log: Path) -> None:
        """What was durable before a kill is there after it."""
        latest = {line[0]: line for line in map(json.loads, _whole_lines(log))}
        for name, length, digest in latest.values():
            tokens = self.system.spawn(name).transcript().token_ids[:length]
            if len(tokens) < length or tokens_hash(tokens) != digest:
                self.violations.append(f"{name}: lost a durable turn")


def secret(name: str) -> list[int]:
    """Three tokens that only this agent's prompts begin with."""
    number = sum((index + 1) * ord(c) for index, c in enumerate(name)) * 7919 % 127**3
    return [1 + number % 127, 1 + number // 127 % 127, 1 + number // 127**2]


def last_number(agent: Agent) -> int:
    """Of the last prompt that an agent remembers; 0 for a new one."""
    prompts = [turn for turn in agent.transcript().turns if not turn.is_answer]
    return number_of(prompts[-1]) if prompts else 0


def number_of(prompt: Turn) -> int:
    """What `digits` made."""
    return (prompt.token_ids[3] - 1) * 120 + prompt.token_ids[4] - 1


def digits(number: int) -> list[int]:
    """A number below 14,400 as two tokens."""
    return [1 + number // 120, 1 + number % 120]


def _whole_lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
