"""Every kind of layer cache, and a family of models that has it."""

__all__ = ["KINDS"]

KINDS = {
    "full": "qwen3",
    "keys and values of different size": "deepseek_v2",
    "sliding": "gemma3_text",
    "sinks": "gpt_oss",
    "soft-capped": "gemma2",
    "latent": "deepseek_v3",
    "chosen keys": "deepseek_v32",
    "shared": "gemma3n",
    "shared, of windows": "gemma4_text",
    "experts": "qwen3_moe",
    "row by row": "gpt_bigcode",
    "recurrent": "mamba2",
    "linear attention": "qwen3_next",
    "convolution": "lfm2",
    "attention and state in one layer": "falcon_h1",
    "window and state in one layer": "baichuan_m1",
    "window and state": "recurrent_gemma",
}
