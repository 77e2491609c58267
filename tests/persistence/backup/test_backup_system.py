"""`AgentSystem.backup`: while agents go on, and warm where it is restored."""

from collections.abc import Callable
from pathlib import Path

import pytest
from store_saves import F1, backed_up, kv_save, put

from kvactors.actors import AgentSystem, InvalidConfig
from kvactors.actors.system.backups import LOOKS, back_up
from kvactors.persistence import Store
from kvactors.persistence.backup.backup import Backup
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.files.naming import encode_agent_id
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


@pytest.mark.parametrize("damage", [b"KVAL and no more of it", None])
def test_an_agent_that_cannot_be_read_is_named_and_kept_as_it_was_and_the_rest_goes_on(
    tmp_path: Path, damage: bytes | None
) -> None:
    store, objects = Store(tmp_path / "store"), open_objects((tmp_path / "objects").as_uri())
    for name in ("alice", "bob", "carol"):
        assert not put(store, kv_save(name, example_segment(0, 40))).failed
    first = backed_up(store, objects)
    ledger = store.root / "agents" / encode_agent_id("bob") / "ledger.log"
    if damage is None:
        # What a disk does that cannot read it.
        ledger.unlink()
        ledger.mkdir()
    else:
        ledger.write_bytes(damage)
    store.close()
    store = Store(tmp_path / "store")
    assert not put(store, kv_save("carol", example_segment(0, 50))).failed

    report = backed_up(store, objects)

    assert (first.agents, first.skipped) == (3, ())
    assert report.agents == 3
    assert [reason.split(":")[0] for reason in report.skipped] == [encode_agent_id("bob")]
    restore(objects, tmp_path / "new")
    again = Store(tmp_path / "new")
    assert list(again.verify()) == []
    assert again.read_ledger("bob") == ({"n": 40},)
    assert again.kv_extent("carol", F1) == 50


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

    report = back_up(Backup(objects), store.root, store.agent_folders(), look, lambda *_: None)

    assert len(looked) == LOOKS
    assert report.agents == 1
    restore(objects, tmp_path / "new")
    again = Store(tmp_path / "new")
    assert again.read_ledger("alice") == ({"n": 40},)
    assert again.kv_extent("alice", F1) == 0
