"""An object store as obstore has it: a folder, S3, GCS or Azure, by its URL. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from kvactors.persistence.errors import BackupFailed

__all__ = ["ObjectMissing", "Objects", "open_objects"]


class ObjectMissing(BackupFailed):
    """There is no object of this name."""


class Objects:
    """Objects by name. Whatever fails is a BackupFailed that names the object.

    `root`: where they are files. As a store's own: what is remembered is nobody else's.
    """

    def __init__(self, store: Any, root: Path | None = None) -> None:
        self._store = store
        self._root = root

    def names(self, prefix: str) -> Iterator[str]:
        """Of all that begin with `prefix`, a folder's."""
        yield from (name for name, _ in self.sizes(prefix))

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Of the same objects: names, and bytes."""
        import obstore

        with _told(prefix):
            for page in obstore.list(self._store, prefix=prefix):
                yield from ((found["path"], found["size"]) for found in page)

    def put(self, name: str, data: bytes) -> None:
        """Make or replace an object."""
        import obstore

        with _told(name):
            if self._root is not None:
                (self._root / name).parent.mkdir(0o700, exist_ok=True)
            obstore.put(self._store, name, data)

    def get(self, name: str) -> bytes:
        """All of an object. Raises ObjectMissing too."""
        import obstore

        with _told(name):
            return bytes(obstore.get(self._store, name).bytes())


def open_objects(url: str, options: Mapping[str, Any] | None = None) -> Objects:
    """Those below a `url` such as s3://bucket/folder or file:///folder; `options` as obstore's
    `from_url` takes them, by default what the environment says. Raises BackupFailed."""
    try:
        import obstore.store
    except ImportError:
        raise BackupFailed(
            "backups need the package obstore: pip install 'kvactors[backup]'"
        ) from None
    made = dict(options or {})
    if str(url).startswith("file:"):
        made.setdefault("mkdir", True)
    root = None
    with _told(str(url)):
        if str(url).startswith("file:///") and made["mkdir"]:
            root = Path(url2pathname(urlsplit(url).path))
            root.mkdir(0o700, parents=True, exist_ok=True)
        return Objects(obstore.store.from_url(str(url), **made), root)


@contextmanager
def _told(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, TypeError, ValueError) as error:
        reason: BaseException = error
    except BaseException as error:
        # What obstore's Rust does about some options.
        if type(error).__name__ != "PanicException":
            raise
        reason = error
    else:
        return
    first = str(reason).strip().partition("\n")[0]
    kind = ObjectMissing if isinstance(reason, FileNotFoundError) else BackupFailed
    raise kind(f"{what}: {first or type(reason).__name__}") from reason
