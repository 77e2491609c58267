"""One group commit as data and steps: Save, CommitPart, run_steps, GroupSyncs."""
