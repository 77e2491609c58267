"""`kvactors bench`: one line a regime, with targets; growth."""
