"""What runs gave: numbers, tables, pictures and a page, of their records alone. Knows no system and
no model; on any thread."""
