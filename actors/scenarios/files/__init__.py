"""A scenario as it is written: YAML with lines, the words it may have, templates, tables, checks."""
