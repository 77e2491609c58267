"""Tiny arguments for every model family of mlx-lm: one table by the names of arguments.

A family's own arguments are found by the names of its ModelArgs; what the table does not have
keeps its default, or gets a small value of its type. `OWN` says what is special to a family.
Geometry is true to the kind: grouped heads, windows shorter than a prompt, several experts,
patterns of layers in which every kind occurs.
"""

from typing import Any

__all__ = ["COMMON", "NESTED", "OWN", "WINDOW"]

WINDOW = 12
"""Tokens of every sliding window."""

_FULL, _SLIDING = "full_attention", "sliding_attention"
_PATTERN = [_SLIDING, _FULL, _SLIDING, _FULL]

COMMON: dict[str, Any] = {
    # sizes
    "hidden_size": 128,
    "hidden_dim": 128,
    "d_model": 128,
    "n_embd": 128,
    "embedding_size": 128,
    "intermediate_size": 128,
    "intermediate_size_mlp": 128,
    "ffn_hidden_size": 128,
    "mlp_hidden_size": 128,
    "n_inner": 128,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layers": 4,
    "n_layer": 4,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "n_kv_heads": 2,
    "head_dim": 32,
    "rotary_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "model_max_length": 4096,
    "n_positions": 4096,
    "n_ctx": 4096,
    "block_size": 4096,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "hidden_activation": "silu",
    # windows
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "window_size": WINDOW,
    "attention_window_size": WINDOW,
    "loop_window_size": WINDOW,
    "sliding_window_pattern": 2,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_intermediate_size": 64,
    "expert_ffn_hidden_size": 64,
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.0,
    # latent attention
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_head_dim": 32,
    "index_n_heads": 2,
    "index_topk": 2048,
    # states
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "state_size": 16,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_groups": 1,
    "expand": 2,
    "time_step_rank": 8,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_limit": (0.001, 100.0),
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "chunk_size": 64,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_dt_rank": 8,
    "conv_L_cache": 3,
    "conv_window": 2,
    "layer_group_size": 2,
    "group_norm_size": 1,
}

NESTED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n:TextConfig",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "llama4": "llama4:TextArgs",
    "minimax_m3_vl": "minimax_m3_vl:TextArgs",
    "mistral3": "ministral3",
    "muse_spark": "muse_spark:TextConfig",
    "pixtral": "llama",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5:TextModelArgs",
    "qwen3_5_moe": "qwen3_5:TextModelArgs",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Families whose ModelArgs hold the arguments of a text model, and where those are."""

OWN: dict[str, dict[str, Any]] = {}
"""What is special to a family, over COMMON; for nested ones of their text model."""
