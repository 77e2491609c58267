"""What a turn will probably say next, from what was said before, so that one forward checks several
tokens. Nothing here decides a token: a draft is taken while it equals what is drawn. Drafts are
chains: trees of two branches gave less for their cost on all measured texts but the default model's
worlds, so that they are for sessions alone (`TreeCache`). No MLX."""
