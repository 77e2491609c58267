"""What a turn will probably say next, from what was said before, so that one forward checks several
tokens. Nothing here decides a token: a draft is taken while it equals what is drawn. No MLX."""
