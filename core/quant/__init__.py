"""How one key or value is stored as codes; knows no row, slot or slab."""
