"""Ray's adapter: its processes on a machine, a transport over its actors, and the two actors that
hold the directory and a node. Needs kvactors[ray]; nothing else of kvactors knows Ray. What is
async belongs to one asyncio loop, the rest to the thread that calls it."""
