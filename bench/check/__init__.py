"""`kvactors check`: what of the promises holds on this machine, as a report for an issue."""
