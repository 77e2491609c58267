"""Who owns an agent, and what may be acknowledged: no thread, clock, disk or Ray of its own. All of
these are given (`interfaces.py`), so that a test decides what fails and when. One asyncio loop.

    directory/server.py  Directory(transport, clock, journal, settings)
    node/server.py       Node(name, transport, clock, journal, host, settings=settings)
    client.py            Client(transport, clock, settings)

Both servers have `async run()`: rounds, until it is cancelled (the directory's raises when its
disk failed: start another), and `async handle(method, record) -> record`; a node has `stream` for
turns besides. An adapter carries `wire.pack(record)` there, and back what `wire.serve` makes of it,
for `wire.answered`. A Transport's name for the directory is "directory".

A client has, `seconds` being for how long it tries again by itself:

    await spawn(agent, options, group)           Place
    await turn(agent, request, seconds)          {"answer", "durable", "epoch", "node"}
    stream(agent, request, seconds)              items: {"tokens", "text"}, then the answer as above
                                                 with durable None, then {"durable": bool}
    await confirm(agent, request_id, seconds)    whether it is durable by now
    await read(agent, start, seconds)            {"records": [bytes], "epoch"}
    await ask(method, record, seconds)           any method of the directory

`request` is the host's, with "id": the same in each try. A turn that is not durable is on one
node only, as there is no second one just now.
"""
