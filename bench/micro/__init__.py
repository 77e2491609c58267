"""One part alone: python -m kvactors.bench.micro.NAME."""
