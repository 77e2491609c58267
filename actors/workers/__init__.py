"""The two actors that each system has once: GPU and persistence."""
