"""How large a cache is, and where caches are found."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from kvactors.core.cache.family.config import (
    CacheConfig,
    ModelFacts,
    read_metadata,
    write_metadata,
)
from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.cache.family.faces import Cache, DecodeCache, Planner, SeqCache, TreeCache
from kvactors.core.cache.family.registry import CacheRegistry, build, builders
from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.cache.family.tree import TreeBookkeeping
from kvactors.core.errors import FaceMismatch, GroupSizeMismatch, InvalidConfig

FACTS = ModelFacts(n_layers=32, n_kv_heads=8, head_dim=128)
CONFIG = CacheConfig(FACTS, capacity=64)


def test_what_is_written_into_a_file_is_read_from_it() -> None:
    written = write_metadata({"name": "tiny"}, FACTS)

    assert written == {
        "name": "tiny",
        "kv_cache.schema_version": 1,
        "kv_cache.n_layers": 32,
        "kv_cache.n_kv_heads": 8,
        "kv_cache.head_dim": 128,
    }
    assert read_metadata(written) == FACTS
    # The metadata of a safetensors file are texts.
    assert read_metadata({name: str(value) for name, value in written.items()}) == FACTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache.schema_version": 2}, "schema_version is 2, and 1 is what can be read"),
        ({"kv_cache.schema_version": None}, "schema_version is a whole number, not None"),
        ({"kv_cache.head_dim": "wide"}, "head_dim is a whole number, not 'wide'"),
        ({"kv_cache.n_layers": 0}, "n_layers is a whole number from 1 on, not 0"),
    ],
)
def test_metadata_of_another_version_or_without_numbers_are_refused(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read_metadata(write_metadata({}, FACTS) | change)


def test_metadata_without_a_cache_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"lacks kv_cache\.schema_version"):
        read_metadata({})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"capacity": 0}, InvalidConfig, "capacity is a whole number of tokens from 1 on, not 0"),
        ({"bits": 3}, InvalidConfig, "4, 8 or None"),
        ({"bits": "k8v4"}, InvalidConfig, "4, 8 or None"),
        ({"group_size": 48}, InvalidConfig, "32, 64 or 128"),
        ({"facts": ModelFacts(2, 2, 96), "group_size": 64}, GroupSizeMismatch, "64 does not"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    arguments: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        CacheConfig(**{"facts": FACTS, "capacity": 8, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "made", "face"),
    [
        ("contiguous", ContiguousBookkeeping, DecodeCache),
        ("seq", SeqBookkeeping, SeqCache),
        ("tree", TreeBookkeeping, TreeCache),
    ],
)
def test_each_kind_has_its_face_and_a_plan(kind: str, made: type, face: type) -> None:
    cache = build(kind, face, CONFIG)

    assert type(cache) is made
    assert isinstance(cache, face)
    assert isinstance(cache, Planner)
    assert isinstance(cache, Cache)
    assert cache.capacity == 64


@pytest.fixture
def wrong_builder() -> Iterator[None]:
    """Sequences are made by what makes trees."""
    right = builders["seq"]
    builders["seq"] = builders["tree"]
    yield
    builders["seq"] = right


@pytest.mark.usefixtures("wrong_builder")
def test_a_builder_of_another_kind_is_refused_where_the_cache_is_made() -> None:
    with pytest.raises(FaceMismatch, match=r"'seq'.*TreeBookkeeping, which is no SeqCache.*seq_cp"):
        build("seq", SeqCache, CONFIG)


def test_a_cache_is_found_by_its_key_as_what_it_is() -> None:
    registry = CacheRegistry()
    cache = build("seq", SeqCache, CONFIG)

    key = registry.install(cache)

    assert registry.get(key, SeqCache) is cache
    assert registry.get(key, Cache) is cache
    with pytest.raises(FaceMismatch, match=f"{key}.*is no TreeCache: it lacks commit"):
        registry.get(key, TreeCache)


def test_who_took_a_cache_goes_on_when_its_key_is_erased() -> None:
    registry = CacheRegistry()
    key = registry.install(build("contiguous", DecodeCache, CONFIG))
    taken = registry.get(key, DecodeCache)

    registry.erase(key)
    registry.erase(key)

    assert taken.can_extend(64)
    assert len(registry) == 0
    with pytest.raises(InvalidConfig, match=f"no cache has the key '{key}'"):
        registry.get(key, DecodeCache)


def test_threads_get_keys_of_their_own() -> None:
    registry = CacheRegistry()
    keys: list[str] = []

    def install() -> None:
        keys.extend(registry.install(build("seq", SeqCache, CONFIG)) for _ in range(50))

    threads = [threading.Thread(target=install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(keys)) == len(registry) == 400


def test_bookkeeping_loads_neither_mlx_nor_numpy() -> None:
    program = (
        "import sys\n"
        "import kvactors.core.cache.family.registry\n"
        "print({'mlx', 'numpy', 'pykka'} & set(sys.modules))"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ended.stdout == "set()\n", ended.stderr
