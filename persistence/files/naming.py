"""File names. Ids come from users and never become paths: only these names do. Pure: any thread."""

from __future__ import annotations

import re
from functools import lru_cache

import xxhash

from kvactors.persistence.errors import InvalidFingerprint

__all__ = [
    "BAD_SUFFIX",
    "DATABASE_NAME",
    "LEDGER_NAME",
    "MANIFEST_NAME",
    "SEGMENT_NAME",
    "TEMP_SUFFIX",
    "check_fingerprint",
    "encode_agent_id",
    "id_bytes",
    "segment_name",
]

LEDGER_NAME = "ledger.log"
MANIFEST_NAME = "manifest.msgpack"
SEGMENT_NAME = re.compile(r"seg-(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})-[0-9a-f]{32}\.safetensors")
DATABASE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\.db")
"""Of what lies beside the agents in a store's folder: a server's `clients.db`."""
TEMP_SUFFIX = ".tmp"
BAD_SUFFIX = ".bad"

_FINGERPRINT = re.compile(r"[0-9a-f]{16,64}")
_SLUG_LENGTH = 40


def id_bytes(agent_id: str) -> bytes:
    """UTF-8 of any Python string: lone surrogates are legal ids and pass through."""
    return agent_id.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1 << 14)
def encode_agent_id(agent_id: str) -> str:
    """Directory name of an agent: `<slug>-<xxh3_128>`, ASCII, at most 73 characters.

    The slug is for the person who looks into the store; the hash keeps apart what a
    case-insensitive or normalising file system would fold together. The hash is not
    a cryptographic one, so the real id stands in the ledger and in the manifest and
    is compared on reading.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", agent_id.lower()).strip("-")[:_SLUG_LENGTH].strip("-")
    return f"{slug or 'agent'}-{xxhash.xxh3_128_hexdigest(id_bytes(agent_id))}"


def check_fingerprint(fingerprint: str) -> str:
    """The fingerprint itself; raises InvalidFingerprint for what is not plain hex."""
    if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
        raise InvalidFingerprint(fingerprint)
    return fingerprint


def segment_name(start: int, end: int, digest: str) -> str:
    """Name of the segment of tokens [start, end) whose file has this xxh3_128 digest."""
    return f"seg-{start}-{end}-{digest}.safetensors"
