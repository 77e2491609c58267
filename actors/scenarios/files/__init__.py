"""A scenario as it is written: YAML and its lines, the words it may have, templates, tables."""
