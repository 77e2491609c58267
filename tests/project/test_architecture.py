"""The rooms and their arrows. The table is data: a change of the structure is a change of it."""

import ast
from graphlib import TopologicalSorter

from house import FOLDERS, ROOT, allowed, arrows, files, imports, name, room, tree

# room: rooms it may import, for types too. A file that stands in a folder itself is a room of its
# own, all of bench's are one. Whoever adds an arrow says with it what it is for.
ARROWS = """
core/blas:
core/errors:
core/numbers:
core/text: core/errors
core/trace:
persistence/errors: core/errors
actors/runtime: core/errors core/numbers
core/cache: core/errors core/numbers
core/cache/family: core/cache core/errors core/numbers
core/conversation: core/errors core/numbers core/text
actors/errors: core/errors persistence/errors
persistence/files: core/cache core/errors persistence/errors
actors/dispatcher: actors/runtime
core/schedule: core/cache core/errors core/numbers
core/quant: core/cache
persistence/commit: core/cache persistence/errors persistence/files
core/attention: core/cache core/errors core/quant
core/attention/export: core/cache/family core/errors
persistence/ledger: persistence/commit persistence/errors persistence/files
core/arena: core/attention core/cache core/errors core/quant
persistence/kv: core/cache persistence/commit persistence/errors persistence/files
    persistence/ledger
core/arena/compiled: core/arena
core/batch: core/arena
core/model: core/arena core/arena/compiled core/attention core/cache core/conversation core/errors
    core/numbers core/quant core/text
persistence/store: core/cache persistence/commit persistence/errors persistence/files persistence/kv
    persistence/ledger
core/arena/sessions: core/arena core/attention core/cache core/cache/family core/errors core/model
    core/numbers
core/sessions: core/arena/sessions core/cache/family
core/schedule/speculation: core/errors core/conversation core/schedule
core/engine: core/arena core/arena/compiled core/cache core/conversation core/errors
    core/model core/schedule core/schedule/speculation core/trace
persistence/backup: persistence/errors persistence/files persistence/store
persistence: core/cache persistence/commit persistence/errors persistence/files persistence/store
persistence/formats: core/cache persistence/errors persistence/files
    persistence/kv persistence/ledger persistence/store
persistence/testing: core/cache persistence/commit persistence/files persistence/store
actors/cluster/protocol: core/errors
actors/cluster/protocol/directory: actors/cluster/protocol
actors/cluster/protocol/node: actors/cluster/protocol core/errors
actors/cluster/testing/machines: actors/cluster/protocol core/errors
actors/cluster/testing: actors/cluster/protocol actors/cluster/protocol/directory
    actors/cluster/protocol/node actors/cluster/testing/machines
actors/turns: actors/errors actors/runtime core/cache core/conversation core/engine core/errors
    core/model core/numbers core/schedule core/trace persistence/commit persistence/store
    core/text
core/testing: core/arena core/cache core/cache/family core/conversation core/engine core/model
    core/quant core/schedule
actors/agents: actors/errors actors/runtime actors/turns core/cache core/conversation core/errors
    core/model core/schedule persistence/commit persistence/store
actors/system/observe: actors/turns core/errors core/trace
actors/workers: actors/errors actors/runtime actors/turns core/arena core/engine core/errors
    core/model core/schedule core/trace persistence/commit persistence/errors persistence/store
actors/behaviours: actors/agents actors/errors actors/runtime actors/turns core/errors core/numbers
    core/schedule core/trace
actors/scenarios/journal: core/errors
actors/scenarios/results: actors/scenarios/journal
actors/scenarios/files: core/errors core/text
actors/scenarios/running: actors/agents actors/behaviours actors/cluster actors/cluster/agents
    actors/errors actors/runtime actors/scenarios/files actors/scenarios/journal actors/system
    actors/turns core/errors core/schedule core/text
actors/scenarios: actors/scenarios/files actors/scenarios/journal actors/scenarios/results
    actors/scenarios/running actors/system core/errors core/numbers persistence/files
actors/system: actors/agents actors/behaviours actors/errors actors/runtime actors/system/observe
    actors/turns actors/workers core/arena core/blas core/cache core/conversation core/engine
    core/errors core/model core/numbers core/schedule core/schedule/speculation core/trace
    persistence/backup persistence/commit persistence/errors persistence/files persistence/formats
    persistence/store
actors/cluster/machine: actors/cluster/host actors/cluster/protocol
    actors/runtime actors/system core/errors persistence/errors persistence/files
    persistence/ledger
actors/cluster/agents: actors/agents actors/behaviours actors/cluster/host
    actors/cluster/machine actors/cluster/protocol actors/runtime actors/turns core/conversation
    core/errors core/model core/schedule persistence/files core/text
actors/cluster/member: actors/agents actors/behaviours actors/cluster/agents actors/cluster/host
    actors/cluster/machine actors/cluster/protocol actors/cluster/protocol/node actors/runtime
    actors/system actors/turns core/errors persistence/backup persistence/errors persistence/files
    persistence/store
actors/cluster/ray: actors/cluster/machine actors/cluster/member actors/cluster/protocol
    actors/cluster/protocol/directory core/errors persistence/files
actors/cluster: actors/behaviours actors/cluster/agents actors/cluster/machine
    actors/cluster/member actors/cluster/protocol actors/cluster/protocol/directory
    actors/cluster/ray actors/runtime actors/system actors/turns core/cache core/conversation
    core/errors core/model persistence/backup persistence/errors persistence/files
actors: actors/agents actors/behaviours actors/cluster actors/cluster/agents actors/errors
    actors/runtime actors/system actors/turns actors/workers core/conversation core/errors
    core/schedule core/schedule/speculation
actors/cluster/host: actors/agents actors/cluster/protocol actors/errors actors/runtime
    actors/system actors/turns core/conversation core/errors core/model core/numbers core/schedule
    persistence/errors persistence/files persistence/store core/text
actors/testing: actors/agents actors/runtime actors/system actors/turns actors/workers
    core/conversation core/errors core/model core/schedule core/testing persistence/files
    persistence/store persistence/testing
bench: actors core/arena/compiled core/blas core/engine core/errors core/model core/quant
    core/schedule core/testing persistence persistence/testing
actors/frontends/stress: actors/agents actors/errors actors/runtime actors/system actors/testing
    core/conversation core/errors core/schedule
bench/quality: actors bench core/blas core/conversation core/engine core/errors core/model
    core/model/worlds
bench/micro: actors actors/runtime actors/system/observe bench core/blas core/conversation
    core/engine core/model core/model/worlds core/testing core/trace persistence persistence/testing
bench/families: bench core/arena core/blas core/cache core/engine core/errors core/model
    core/schedule core/testing persistence/commit persistence/store
bench/serve: actors actors/frontends/server/web bench core/model
bench/cluster: actors actors/cluster actors/cluster/host actors/cluster/machine
    actors/cluster/member actors/cluster/protocol actors/cluster/protocol/directory
    actors/cluster/protocol/node actors/cluster/ray actors/cluster/testing/machines actors/runtime
    actors/turns bench
bench/steps: actors bench core/engine core/model core/model/worlds core/schedule
    core/schedule/speculation core/testing
bench/table: actors actors/runtime bench bench/cluster bench/micro bench/serve bench/steps
    core/arena core/engine core/errors core/model core/schedule core/testing core/trace persistence
bench/experiments: actors actors/scenarios actors/scenarios/journal bench bench/quality bench/table
    core/blas core/conversation core/model core/model/worlds core/testing
bench/check: actors bench bench/table core/arena core/attention core/cache core/engine core/model
    core/quant core/testing
actors/frontends/demo: actors/system actors/turns core/blas core/model/worlds core/schedule
    persistence/files
actors/frontends/console: core/conversation core/errors persistence/files
actors/frontends/server/exchange: core/errors core/schedule
actors/frontends/server/dialect: actors/frontends/server/exchange core/conversation core/errors
    core/schedule
actors/frontends/server/identity: actors/errors actors/frontends/server/exchange core/conversation
    core/errors persistence/files
actors/frontends/server/answering: actors/errors actors/frontends/server/dialect
    actors/frontends/server/exchange actors/frontends/server/identity actors/turns core/conversation
    core/errors core/model core/schedule persistence/files
actors/frontends/server/wire: actors/cluster/protocol actors/errors
    actors/frontends/server/exchange core/conversation core/errors core/schedule
actors/frontends/server/wire/responses: actors/errors actors/frontends/server/exchange
    actors/frontends/server/identity actors/frontends/server/wire core/schedule
actors/frontends/server/agents: actors/agents actors/errors actors/frontends/server/answering
    actors/frontends/server/exchange actors/frontends/server/identity actors/frontends/server/wire
    actors/system actors/turns core/conversation core/errors core/schedule core/trace
actors/frontends/server/web: actors/cluster actors/frontends/console
    actors/frontends/server/agents actors/frontends/server/answering
    actors/frontends/server/identity actors/frontends/server/page actors/frontends/server/wire
    actors/frontends/server/wire/responses actors/system core/errors core/numbers
    persistence/files
actors/frontends/cli: actors/agents actors/cluster actors/cluster/member actors/cluster/protocol
    actors/cluster/ray actors/errors actors/frontends/console actors/frontends/demo
    actors/frontends/server/dialect actors/frontends/server/exchange
    actors/frontends/server/identity actors/frontends/server/web actors/frontends/stress
    actors/scenarios actors/scenarios/journal actors/scenarios/results actors/system
    actors/system/observe actors/turns bench bench/check bench/table core/blas core/cache
    core/errors core/model core/schedule persistence/backup persistence/errors persistence/files
    persistence/formats persistence/store
actors/cli: actors/frontends/cli
"""
# Arrows that are still there and go: from the table above they would make a cycle.
TODO_CUTS: set[tuple[str, str]] = set()
# The one module that may import bench, and only within its functions.
MEASURES = "actors/frontends/cli/bench.py"
PYKKA_INSIDE = {"actors/runtime"}


def test_rooms_import_only_what_the_table_says() -> None:
    assert sorted(arrows() - allowed(ARROWS) - TODO_CUTS) == []


def test_every_arrow_of_the_table_is_used() -> None:
    assert sorted((allowed(ARROWS) | TODO_CUTS) - arrows()) == []


def test_the_arrows_make_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for importer, imported in allowed(ARROWS):
        graph.setdefault(importer, set()).add(imported)

    assert list(TopologicalSorter(graph).static_order())


def test_nobody_imports_benchmarks_but_the_command_that_runs_them() -> None:
    for path in files("actors", "core", "persistence"):
        ours = {n for n in imports(tree(path)) if n.startswith("kvactors.bench")}
        assert not ours or name(path) == MEASURES, name(path)
    outside = [node for node in tree(ROOT / MEASURES).body if not isinstance(node, ast.FunctionDef)]
    assert not any(n.startswith("kvactors.bench") for node in outside for n in imports(node))


def foreign(folder: str) -> set[str]:
    """What the files of a folder import, by the first name; of ours by the first two."""
    return {
        ".".join(imported.split(".")[: 2 if imported.startswith("kvactors.") else 1])
        for path in files(folder)
        for imported in imports(tree(path))
    }


def test_the_engine_knows_no_actor_and_no_store() -> None:
    wrong = {"pykka", "kvactors.actors", "kvactors.persistence", "kvactors.bench"}
    assert not foreign("core") & wrong


def test_persistence_knows_neither_tensors_nor_actors() -> None:
    wrong = {"mlx", "mlx_lm", "pykka", "kvactors.actors", "kvactors.bench"}
    assert not foreign("persistence") & wrong
    ours = {n for path in files("persistence") for n in imports(tree(path)) if ".core." in n}
    assert ours <= {"kvactors.core.errors", "kvactors.core.cache.segment"}


def test_pykkas_inside_is_known_to_one_room() -> None:
    users = {room(path) for path in files(*FOLDERS) if "pykka._envelope" in imports(tree(path))}
    assert users <= PYKKA_INSIDE
