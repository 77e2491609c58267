"""Who owns an agent, and what may be acknowledged: no threads, no clock, no disk, no Ray
of its own. All of these are given (`interfaces.py`), so that a test decides what fails and when.

    Directory(transport, clock, journal, settings)        "directory" for a Transport
    Node(name, transport, clock, journal, host, settings)
    Client(transport, clock, settings, name)              no server: of whoever asks

Both servers have `async run()` (their rounds, until it is cancelled) and `async handle(method,
record) -> record`; a node has `stream(method, record)` for turns besides. An adapter carries
`pack(record)` there and back through `wire.serve` and `wire.answered`.

    directory: join renew find claim spawn offer name move moves drain nodes agents forget stats
    node:      turn read confirm align replicate digests piece release mend load

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
