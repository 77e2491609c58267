"""URLs of object stores; and backups over S3's own protocol, to a server on this machine, as the
README says."""

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import certifi
import obstore
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from obstore.store import from_url
from store_saves import F1, RECORD, backed_up, put
from werkzeug.serving import make_server

from kvactors.persistence import Save, Store
from kvactors.persistence.backup.backup import Backup, snapshots
from kvactors.persistence.backup.objects import Objects, open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.testing.doubles import example_segment

URL = "s3://memories/of-agents"
SEGMENTS = (example_segment(0, 256), example_segment(256, 300))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Of a server with one bucket."""
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    with urllib.request.urlopen(urllib.request.Request(f"{url}/memories", method="PUT")):
        pass
    yield url
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def objects(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Objects:
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "who",
        "AWS_SECRET_ACCESS_KEY": "what",
        "AWS_REGION": "us-east-1",
        # It wants some, though it speaks HTTP; tests of the server take the system's away.
        "SSL_CERT_FILE": certifi.where(),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    return open_objects(URL)


def test_a_store_goes_to_s3_and_back_and_the_second_time_only_what_is_new(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    put(store, Save("alice", (RECORD,), F1, SEGMENTS), Save("böb", ({"n": 1},), None, ()))
    first = backed_up(store, objects)
    before = set(objects.names("blobs"))
    again = backed_up(store, objects)
    put(store, Save("böb", ({"n": 2},), None, ()))

    third = backed_up(store, objects)

    assert (first.agents, first.added > 0, again.added) == (2, True, 0)
    assert 0 < third.added < 200
    assert len(set(objects.names("blobs")) - before) == 1
    assert restore(open_objects(URL), tmp_path / "new") == 2
    new = Store(tmp_path / "new")
    assert list(new.verify()) == []
    assert new.read_kv("alice", F1) == SEGMENTS
    assert new.read_ledger("böb") == ({"n": 1}, {"n": 2})


def test_what_is_damaged_or_missing_there_is_named(
    store: Store, tmp_path: Path, objects: Objects
) -> None:
    put(store, Save("carol", ({"n": 3},), None, ()))
    report = backed_up(store, objects)
    there = sorted(objects.names("blobs"))
    kept = {name: objects.get(name) for name in there}
    for name in there:
        objects.put(name, kept[name][:-1] + b"!")

    with pytest.raises(BackupFailed, match="is damaged"):
        restore(objects, tmp_path / "new", report.name)
    for name in there:
        obstore.delete(from_url(URL), name)
    with pytest.raises(BackupFailed, match="blobs/"):
        restore(objects, tmp_path / "new", report.name)

    assert not (tmp_path / "new").exists()


def test_a_large_object_goes_in_parts_and_is_whole(objects: Objects) -> None:
    data = bytes(range(256)) * (50 << 10)

    objects.put("large/one", data)

    assert list(objects.sizes("large")) == [("large/one", len(data))]
    assert objects.get("large/one") == data


@pytest.mark.slow
def test_more_objects_than_one_page_lists_are_all_seen(objects: Objects) -> None:
    for number in range(1_003):
        objects.put(f"many/{number:04}", b"x")

    assert len(list(objects.names("many"))) == 1_003


def test_a_bucket_that_is_not_there_is_refused(objects: Objects, store: Store) -> None:
    with pytest.raises(BackupFailed, match=r"blobs: .* 404 Not Found"):
        Backup(open_objects("s3://nowhere/x"))


@pytest.mark.parametrize("url", ["gopher://x", "no url", "", "file:///proc/nowhere"])
def test_a_url_that_is_no_object_store_is_refused(url: str) -> None:
    with pytest.raises(BackupFailed):
        snapshots(open_objects(url))


@pytest.mark.parametrize("option", [{"nonsense": "x"}, {"allow_http": True}])
def test_an_option_that_is_none_is_refused(option: dict[str, object]) -> None:
    with pytest.raises(BackupFailed, match="s3://bucket: "):
        open_objects("s3://bucket", option)
