"""`AgentSystem.backup`: while agents go on, and warm where it is restored."""

from collections.abc import Callable
from pathlib import Path

import pytest
from store_saves import F1, kv_save, put

from kvactors.actors import AgentSystem, InvalidConfig
from kvactors.actors.system.backups import LOOKS, back_up
from kvactors.persistence import Store
from kvactors.persistence.backup.backup import Backup
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.store.agent_files import HeldFiles
from kvactors.persistence.testing.doubles import example_segment


def test_agents_are_warm_in_a_store_made_of_a_backup(
    open_system: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    url, steps = (tmp_path / "objects").as_uri(), []
    system = open_system("default")
    alice, bob = system.spawn("alice"), system.spawn("bob")
    alice.ask("My cat is called Biscuit.").get().cached.get()
    bob.ask("Hello.").get()

    report = system.backup(url, on_step=lambda done, all_: steps.append((done, all_)))
    expected = alice.ask("What is my cat called?").get()

    assert report.agents == 2
    assert steps == [(1, 2), (2, 2)]
    assert system.backup(url).added < report.added
    restore(open_objects(url), tmp_path / "new", report.name)
    with AgentSystem(store=tmp_path / "new") as again:
        reply = again.spawn("alice").ask("What is my cat called?").get()
    assert reply.cache == "warm"
    assert reply.text == expected.text


def test_a_backup_needs_a_store(open_system: Callable[..., AgentSystem]) -> None:
    with pytest.raises(InvalidConfig, match="a backup needs a store"):
        open_system(store=False).backup("memory:///")


def test_files_that_leave_while_they_are_copied_are_looked_up_again(tmp_path: Path) -> None:
    store, looked = Store(tmp_path / "store"), list[str]()
    assert not put(store, kv_save("alice", example_segment(0, 40))).failed
    objects = open_objects((tmp_path / "objects").as_uri())

    def look(name: str) -> HeldFiles | None:
        looked.append(name)
        held = store.files.of(name)
        assert held is not None
        for segment in held.kv[0].segments:
            segment.unlink(missing_ok=True)
        return held

    report = back_up(Backup(objects), store.agent_folders(), look, lambda *_: None)

    assert len(looked) == LOOKS
    assert report.agents == 1
    restore(objects, tmp_path / "new")
    again = Store(tmp_path / "new")
    assert again.read_ledger("alice") == ({"n": 40},)
    assert again.kv_extent("alice", F1) == 0
