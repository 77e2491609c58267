"""Items that clients name by their ids instead of sending them again: what was asked, answered or
added to a conversation. The event loop."""

from kvactors.actors.frontends.server.wire.errors import Failure
from kvactors.actors.frontends.server.wire.responses.body import ResponseBody
from kvactors.actors.frontends.server.wire.responses.items import Item, listed
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore
from kvactors.actors.frontends.server.wire.responses.telling import PREFIX

__all__ = ["followed"]


async def followed(body: ResponseBody, tenant: str, store: ResponseStore) -> ResponseBody:
    """A `body`, and in place of each reference in its input what the `tenant` has in the `store`
    under that id. Raises Failure."""
    items = listed(body.input, "input")
    if not any(map(_refers, items)):
        return body
    whole = [
        await _named(item, f"input.{index}", tenant, store) if _refers(item) else item
        for index, item in enumerate(items)
    ]
    return body.model_copy(update={"input": whole})


def _refers(item: Item) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


async def _named(item: Item, where: str, tenant: str, store: ResponseStore) -> Item:
    item_id = item.get("id") or ""
    found = await store.item(tenant, item_id) or await _answered(item_id, tenant, store)
    if found is None:
        raise Failure(
            404,
            f"{where}.id: no item {item_id!r} is kept here (store: false keeps none, and old ones "
            "leave); send the item itself",
            f"{where}.id",
            "item_not_found",
        )
    return found


async def _answered(item_id: str, tenant: str, store: ResponseStore) -> Item | None:
    """One that a response answered with: its id has that of the response in its middle."""
    answer_id = item_id.partition("_")[2].rpartition("_")[0]
    record = await store.find(tenant, f"{PREFIX}{answer_id}") or {}
    output: list[Item] = record.get("response", {}).get("output", [])
    return next((item for item in output if item["id"] == item_id), None)
