"""What was said, as turns, text and token ids; no MLX."""
