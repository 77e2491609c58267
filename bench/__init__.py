"""What all benchmarks share: report, setup, random_model, peers, disk."""
