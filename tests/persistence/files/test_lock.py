"""One process, and one object in it, for each store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from children import run_child
from filelock import FileLock
from seeded import bug, seeded
from store_saves import put

from kvactors.persistence import (
    Save,
    Store,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
)
from kvactors.persistence.files import lock
from kvactors.persistence.files.lock import LOCK_NAME, PATIENCE


def test_a_store_open_in_this_process_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")

    with pytest.raises(StoreAlreadyOpen, match="notebook"):
        Store(tmp_path / "link")

    store.close()
    store.close()
    Store(tmp_path / "link").close()


def test_a_store_open_in_another_process_names_its_pid(tmp_path: Path) -> None:
    store = Store(tmp_path)

    child = run_child(
        """
        import sys
        from kvactors.persistence import Store, StoreLocked
        try:
            Store(sys.argv[1])
        except StoreLocked as error:
            print(error.pid)
        """,
        str(tmp_path),
    )

    assert child.stdout.strip() == str(os.getpid()), child.stderr
    store.close()
    assert issubclass(StoreLocked, Exception)


def test_who_only_looks_whether_somebody_has_it_keeps_nobody_out(tmp_path: Path) -> None:
    looks = FileLock(tmp_path / LOCK_NAME, thread_local=False)
    looks.acquire()
    threading.Timer(PATIENCE / 4, looks.release).start()

    # However late a busy machine lets go.
    with seeded(bug(lock, "PATIENCE")(lambda true: 40 * true)):
        Store(tmp_path).close()


def test_neither_a_killed_process_nor_its_forked_child_leaves_a_lock(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from kvactors.persistence import Store, StoreClosed
        store = Store(sys.argv[1])
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                store.read_ledger("a")
            except StoreClosed:
                store.close()
            os.write(writing, b"lives")
            sys.stdin.read()
            os._exit(0)
        os.read(reading, 5)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdin=subprocess.PIPE
    ) as child:
        # The grandchild lives until stdin is closed at the end of this block.
        assert child.wait(timeout=60) == -signal.SIGKILL

        Store(tmp_path).close()


def test_who_deletes_the_lock_of_an_open_store_loses_nothing(tmp_path: Path) -> None:
    """As people do who think that it is left over."""
    first = Store(tmp_path)
    put(first, Save("a", ({"n": 0},), None, ()))
    (tmp_path / "store.lock").unlink()
    child = run_child(
        """
        import sys
        from kvactors.persistence import Save, Store
        from kvactors.persistence.testing.doubles import Outcomes
        store, outcomes = Store(sys.argv[1]), Outcomes()
        outcomes.commit(store, Save("a", ({"n": 1},), None, ()))
        print(len(outcomes.durable))
        """,
        str(tmp_path),
    )
    assert child.stdout.strip() == "1", child.stderr

    with pytest.raises(StoreNotWritable, match=r"store\.lock was deleted.*open it again"):
        put(first, Save("a", ({"n": 2},), None, ()))

    first.close()
    again = Store(tmp_path)
    assert again.read_ledger("a") == ({"n": 0}, {"n": 1})
    again.close()
