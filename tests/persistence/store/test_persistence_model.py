"""A store under commit, forget, reopen and power loss, against a dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from samples import FULL

from kvactors.persistence import Save, Segment, Store
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.testing.doubles import Outcomes, PowerLossFiles, example_segment

F = ("0" * 16, "1" * 16)
AGENTS = st.sampled_from(["a", "A", "é", "../x"])


class StoreMachine(RuleBasedStateMachine):
    """`ledgers` and `kv` are what the store has promised."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.disk = PowerLossFiles()
        self.store = Store(self.folder / "s", files=self.disk)
        self.ledgers: dict[str, list[dict[str, int]]] = {}
        self.kv: dict[tuple[str, str], list[Segment]] = {}
        self.count = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(agents=st.lists(AGENTS, min_size=1, max_size=4), data=st.data())
    def commit(self, agents: list[str], data: st.DataObject) -> None:
        outcomes, saves = Outcomes(), []
        for agent in agents:
            self.count += 1
            record = {"n": self.count}
            segments: tuple[Segment, ...] = ()
            fingerprint = data.draw(st.sampled_from([*F, None]))
            if fingerprint is not None:
                segments = self._segments(agent, fingerprint, data)
            saves.append(Save(agent, (record,), fingerprint, segments))
            self.ledgers.setdefault(agent, []).append(record)
        outcomes.commit(self.store, *saves)
        assert outcomes.failed == []
        assert sorted(map(id, outcomes.durable)) == sorted(map(id, saves))

    def _segments(self, agent: str, fingerprint: str, data: st.DataObject) -> tuple[Segment, ...]:
        stored = self.kv.setdefault((agent, fingerprint), [])
        keep = data.draw(st.integers(0, len(stored)))
        start = stored[keep].start if keep < len(stored) else stored[-1].end if stored else 0
        ends = sorted({start + data.draw(st.integers(1, 5)) for _ in range(2)})
        parts = []
        for end in ends:
            parts.append(example_segment(start, end, seed=self.count))
            start = end
        stored[keep:] = parts
        return tuple(parts)

    @rule(agent=AGENTS)
    def forget(self, agent: str) -> None:
        self.store.forget(agent)
        self.ledgers.pop(agent, None)
        for fingerprint in F:
            self.kv.pop((agent, fingerprint), None)

    @rule(parent=AGENTS, child=AGENTS)
    def fork(self, parent: str, child: str) -> None:
        if parent not in self.ledgers or child in self.ledgers:
            return
        self.store.fork(parent, child)
        self.ledgers[child] = list(self.ledgers[parent])
        for fingerprint in F:
            self.kv[child, fingerprint] = list(self.kv.get((parent, fingerprint), []))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store(self.folder / "s", files=self.disk)

    @rule(seed=st.none() | st.integers(0, 1000))
    def lose_power(self, seed: int | None) -> None:
        self.store.close()
        self.disk.lose_power(None if seed is None else Random(seed))
        self.store = Store(self.folder / "s", files=self.disk)

    @rule(agent=AGENTS, fingerprint=st.sampled_from(F), data=st.data())
    def spoil(self, agent: str, fingerprint: str, data: st.DataObject) -> None:
        stored = self.kv.get((agent, fingerprint), [])
        if not stored:
            return
        bad = data.draw(st.integers(0, len(stored) - 1))
        first = f"seg-{stored[bad].start}-{stored[bad].end}-*"
        extent = self.store.kv_extent(agent, fingerprint)
        assert extent == stored[-1].end
        for path in (self.folder / "s" / "kv" / fingerprint).glob(f"*/{first}.safetensors"):
            if path.parent in self._folders(agent, fingerprint):
                content = path.read_bytes()
                path.unlink()  # Others may hold the file.
                path.write_bytes(content[:-1])
        assert self.store.read_kv(agent, fingerprint) == tuple(stored[:bad])
        del stored[bad:]

    def _folders(self, agent: str, fingerprint: str) -> list[Path]:
        return [self.folder / "s" / "kv" / fingerprint / encode_agent_id(agent)]

    @invariant()
    def everything_promised_is_there(self) -> None:
        for agent in ("a", "A", "é", "../x"):
            records = self.store.read_ledger(agent)
            assert list(records or ()) == self.ledgers.get(agent, [])
            for fingerprint in F:
                stored = self.kv.get((agent, fingerprint), [])
                assert self.store.read_kv(agent, fingerprint) == tuple(stored)

    @invariant()
    def nothing_else_is_there(self) -> None:
        known = {agent.agent_id for agent in self.store.agents()}
        assert known == set(self.ledgers)
        paths = [path for path in (self.folder / "s" / "kv").rglob("*") if path.is_file()]
        files = {path.stat().st_ino: path.stat().st_size for path in paths}
        assert sum(files.values()) == self.store.kv_size
        assert not [path for path in paths if path.name.endswith(".tmp")]
        segments = [path for path in paths if path.name.endswith(".safetensors")]
        assert len(segments) == sum(map(len, self.kv.values()))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=200 if FULL else 12,
    stateful_step_count=12,
    suppress_health_check=[HealthCheck.too_slow],
)
