"""Which of mlx-lm's families run, how exactly."""
