"""`kvactors store verify`, `gc` and `rm`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_saves import F1, kv_save, put
from typer.testing import CliRunner

from kvactors.actors.frontends.cli.app import app
from kvactors.persistence.commit.save import Save
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import example_segment

runner = CliRunner()
F2 = "1" * 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store of three agents."""
    store = Store(tmp_path)
    for n, name in enumerate(("alice", "bob", "carol")):
        put(store, kv_save(name, example_segment(0, 8, seed=n), example_segment(8, 9, seed=n)))
    put(store, kv_save("carol", example_segment(0, 4), fingerprint=F2))
    store.close()
    return tmp_path


def run(*arguments: object) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def snapshot(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*.*") if path.name != "store.lock"}


def test_a_sound_store_verifies(root: Path) -> None:
    assert run("store", "verify", "--store", root)[:2] == (0, "3 agents checked: no bad files\n")


def test_verify_names_every_bad_file_and_changes_nothing(root: Path) -> None:
    [segment] = root.rglob("alice-*/seg-0-8-*")
    [manifest] = root.glob(f"kv/{F2}/carol-*/manifest.msgpack")
    [ledger] = root.rglob("bob-*/ledger.log")
    [missing] = root.rglob("bob-*/seg-8-9-*")
    for path in (segment, manifest, ledger):
        flip(path)
    missing.unlink()
    before = snapshot(root)

    code, said, _ = run("store", "verify", "--store", root)

    assert code == 1
    for path in (segment, manifest, ledger, missing):
        assert str(path.relative_to(root)) in said
    assert "3 agents checked: 4 bad files" in said
    assert snapshot(root) == before


def test_gc_deletes_what_was_set_aside_and_what_a_crash_left(root: Path) -> None:
    [segment] = root.rglob("alice-*/seg-8-9-*")
    flip(segment)
    store = Store(root)
    store.read_kv("alice", F1)
    store.close()
    orphan = segment.with_name(f"seg-9-10-{'0' * 32}.safetensors")
    orphan.write_bytes(b"left by a crash")
    assert list(root.rglob("*.bad"))

    code, said, _ = run("store", "gc", "--store", root)

    assert code == 0
    assert "of KV deleted" in said
    assert not list(root.rglob("*.bad"))
    assert not orphan.exists()
    assert run("store", "verify", "--store", root)[0] == 0


def test_gc_deletes_the_kv_of_one_model(root: Path) -> None:
    assert run("store", "gc", "--store", root, "--fingerprint", "77")[0] == 2

    code, _, _ = run("store", "gc", "--store", root, "--fingerprint", "1111")

    assert code == 0
    assert [path.name for path in (root / "kv").iterdir()] == [F1]
    store = Store(root)
    assert len(store.read_ledger("carol") or ()) == 2
    store.close()


def test_rm_forgets_one_agent(root: Path) -> None:
    assert run("store", "rm", "carol", "--store", root)[:2] == (0, "carol is forgotten.\n")

    assert not list(root.rglob("carol-*"))
    code, _, complaint = run("store", "rm", "carol", "--store", root)
    assert code == 2
    assert "no agent 'carol'" in complaint


def test_agents_shows_shared_bytes(root: Path) -> None:
    store = Store(root)
    store.fork("alice", "child")
    store.close()

    said = run("agents", "--store", root)[1]

    assert "shared" in said
    assert "0 bytes" in next(line for line in said.splitlines() if line.startswith("bob"))
    assert "0 bytes" not in next(line for line in said.splitlines() if line.startswith("child"))


@pytest.mark.parametrize("command", [("verify",), ("gc",), ("rm", "alice")])
def test_they_stop_when_another_process_has_the_store(root: Path, command: list[str]) -> None:
    holder = Store(root)
    code = "import sys; from kvactors.actors.cli import app; app(sys.argv[1:])"

    ended = subprocess.run(
        [sys.executable, "-c", code, "store", *command, "--store", str(root)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert ended.returncode == 2
    assert f"is open in process {os.getpid()}" in ended.stderr
    assert len(holder.read_ledger("alice") or ()) == 1
    holder.close()


# -- encrypted stores ----------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    monkeypatch.setenv("KVACTORS_KEY_FILE", str(path))
    return path


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    root = tmp_path / "sealed"
    store = Store(root, encryption_key=bytes(range(32)))
    put(store, kv_save("alice", example_segment(0, 8)))
    store.close()
    return root


def test_an_encrypted_store_opens_with_the_key_file(sealed: Path, key_file: Path) -> None:
    assert run("store", "verify", "--store", sealed)[:2] == (0, "1 agents checked: no bad files\n")
    assert "alice" in run("agents", "--store", sealed)[1]

    key_file.write_text(bytes(range(32)).hex() + "\n", "ascii")
    assert "alice" in run("agents", "--store", sealed)[1]


def test_without_its_key_an_encrypted_store_says_what_is_missing(sealed: Path) -> None:
    code, _, said = run("agents", "--store", sealed)

    assert code == 2
    assert "is encrypted" in said


def test_a_key_file_of_another_length_is_refused(sealed: Path, key_file: Path) -> None:
    key_file.write_bytes(b"short")

    code, _, said = run("agents", "--store", sealed)

    assert code == 2
    assert "32 bytes or 64 hex digits; it has 5 bytes" in " ".join(said.split())


def test_a_store_is_backed_up_and_restored(tmp_path: Path) -> None:
    root, url = tmp_path / "store", (tmp_path / "objects").as_uri()
    store = Store(root)
    put(store, kv_save("alice", example_segment(0, 40)))
    store.close()

    code, said, _ = run("store", "backup", url, "--store", root)
    assert code == 0
    assert said.startswith("1 agents in snapshots/")
    blob = next((tmp_path / "objects" / "blobs").iterdir())
    blob.write_bytes(bytes(blob.stat().st_size))
    code, said, _ = run("store", "backup", url, "--store", root, "--check")
    assert (code, ": 0 bytes" in said) == (0, False)
    assert run("store", "restore", url, "--store", tmp_path / "new")[:2] == (
        0,
        f"1 agents restored into {tmp_path / 'new'}\n",
    )
    assert run("store", "verify", "--store", tmp_path / "new")[0] == 0

    code, _, error = run("store", "restore", url, "--store", root)
    assert code == 2
    assert "holds something" in error


def test_who_cannot_be_restored_is_named_with_status_1_and_the_others_are_there(
    tmp_path: Path,
) -> None:
    root, url = tmp_path / "store", (tmp_path / "objects").as_uri()
    store = Store(root)
    put(store, *(Save(agent, ({"of": agent},), None, ()) for agent in ("alice", "bob")))
    store.close()
    run("store", "backup", url, "--store", root)
    (blob,) = (b for b in (tmp_path / "objects" / "blobs").iterdir() if b"bob" in b.read_bytes())
    blob.write_bytes(b"something else")

    code, _, error = run("store", "restore", url, "--store", tmp_path / "new")
    assert (code, "--skip-damaged" in error) == (2, True)
    assert not (tmp_path / "new").exists()

    code, said, _ = run("store", "restore", url, "--store", tmp_path / "new", "--skip-damaged")
    assert code == 1
    assert said.startswith("skipped bob-")
    assert f"1 agents restored into {tmp_path / 'new'}" in said
    assert run("store", "verify", "--store", tmp_path / "new")[0] == 0


def test_parts_of_a_backup_become_stores_that_have_all_of_it_together(tmp_path: Path) -> None:
    root, url = tmp_path / "store", (tmp_path / "objects").as_uri()
    agents = [f"a{number}" for number in range(12)]
    store = Store(root)
    put(store, *(kv_save(agent, example_segment(0, 40)) for agent in agents))
    store.close()
    run("store", "backup", url, "--store", root)

    for part in ("1/3", "2/3", "3/3"):
        new = str(tmp_path / f"new{part[0]}")
        assert run("store", "restore", url, "--store", new, "--part", part)[0] == 0

    stores = [Store(tmp_path / f"new{number}") for number in (1, 2, 3)]
    found = [agent.agent_id for one in stores for agent in one.agents()]
    assert sorted(found) == sorted(agents)
    assert all(one.agents() for one in stores)
    for part in ("0/3", "4/3", "2", "a/b"):
        code, _, error = run("store", "restore", url, "--store", tmp_path / "x", "--part", part)
        assert (code, "the second of three" in " ".join(error.split())) == (2, True)


def test_an_agent_that_a_backup_skips_is_named_and_the_status_says_so(tmp_path: Path) -> None:
    root, url = tmp_path / "store", (tmp_path / "objects").as_uri()
    store = Store(root)
    put(store, kv_save("alice", example_segment(0, 40)), kv_save("bob", example_segment(0, 40)))
    store.close()
    (root / "agents" / encode_agent_id("bob") / "ledger.log").write_bytes(b"no ledger")

    code, said, _ = run("store", "backup", url, "--store", root)

    assert code == 1
    assert said.startswith(f"skipped {encode_agent_id('bob')}: ledger")
    assert "1 agents in snapshots/" in said
