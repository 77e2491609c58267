"""The two actors that each system has once: GPU and persistence, each on a thread of its own."""
