"""The loop and what it owns: admission, memory, batches, KV in and out. On the GPU thread alone."""
