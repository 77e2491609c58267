"""One turn as a record, and which turn runs next: pure, no clock, no MLX at import."""
