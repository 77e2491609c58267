"""What is special to a model family of mlx-lm, beside the arguments in family_args.py."""

from typing import Any

from kvactors.core.testing.family_args import FULL, PATTERN, SLIDING

__all__ = ["NESTED", "NOTES", "OWN"]

NESTED: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n:TextConfig",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_k3:TextArgs",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "llama4": "llama4:TextArgs",
    "minimax_m3_vl": "minimax_m3_vl:TextArgs",
    "mistral3": "ministral3",
    "muse_spark": "muse_spark:TextArgs",
    "pixtral": "llama",
    "prism_hadamard_qwen35": "qwen3_5:TextModelArgs",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5:TextModelArgs",
    "qwen3_5_moe": "qwen3_5:TextModelArgs",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Families whose ModelArgs hold the arguments of a text model, and where those are."""

_ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}
_YARN = {
    "type": "yarn",
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "llama_4_scaling_beta": 0.1,
}
_LINEAR = {
    "kda_layers": [1, 3],
    "full_attn_layers": [2, 4],
    "num_heads": 4,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
    "gate_lower_bound": -5.0,
}
_PACKED = {"path": "model.layers.0.mlp.shared_expert_gate", "dtype": "float16"}
_MIXED = ["conv", FULL, "conv", FULL]

NOTES = {
    "plamo3": "mlx-lm's window has a token more in prefill than in decoding; here both have it"
}
"""What is to be said of a family that runs."""

OWN: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 1},
    "afmoe": {"layer_types": PATTERN},
    "baichuan_m1": {"sliding_window_layers": [0, 2]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
    },
    # Keys of 192 numbers and values of 128, as in the released models.
    "deepseek_v2": {
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_scaling": _YARN,
    },
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"layer_types": PATTERN, "is_moe_layer": [False, True, True, True]},
    "gear": {"layer_types": [FULL, SLIDING, "conv_mixer", FULL]},
    "gemma3n": {
        "layer_types": [*PATTERN, SLIDING, FULL],
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 6,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 128,
        "altup_num_inputs": 2,
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "laurel_rank": 16,
        "rope_local_base_freq": 10_000.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "global_head_dim": 64,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 128,
    },
    "glm_moe_dsa": {"rope_parameters": _ROPE},
    "gptj": {"rotary_dim": 16},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
    "hunyuan": {
        "num_shared_expert": 1,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
        "use_cla": True,
        "cla_share_factor": 2,
    },
    "jamba": {"layers_block_type": ["mamba", "attention"] * 2, "expert_layer_period": 2},
    "kimi_k3": {
        "model_type": "kimi_linear",
        "hidden_act": "situ",
        "activation_situ_beta": 1.0,
        "activation_situ_linear_beta": 1.0,
        "linear_attn_config": _LINEAR,
        "num_experts_per_token": 2,
        "attn_res_block_size": 2,
    },
    "kimi_linear": {"linear_attn_config": _LINEAR, "num_experts_per_token": 2},
    "lfm2": {"layer_types": _MIXED, "block_dim": 128, "block_ff_dim": 128},
    "lfm2_moe": {"layer_types": _MIXED, "num_dense_layers": 1},
    "llama4": {"num_experts_per_tok": 1, "attention_chunk_size": 16},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "longcat_flash": {
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "mellum": {
        "layer_types": PATTERN,
        "rope_parameters": {FULL: _ROPE, SLIDING: _ROPE},
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 64,
        "swa_v_head_dim": 32,
        "head_dim": 64,
    },
    "minicpm3": {
        "rope_scaling": {
            **_YARN,
            "type": "longrope",
            "short_factor": [1.0] * 16,
            "long_factor": [1.0] * 16,
        }
    },
    "minimax_m3_vl": {"index_block_size": 8, "index_topk_blocks": 2},
    "ministral3": {"rope_parameters": _YARN, "layer_types": PATTERN},
    "mistral4": {"rope_parameters": _YARN},
    "muse_spark": {
        "rope_parameters": _ROPE,
        "layer_rope_theta": [10_000.0, 0.0, 10_000.0, 0.0],
        "layer_types": PATTERN,
        "final_logit_softcapping": 30.0,
        "moe_hidden_size": 64,
        "num_shared_experts": 0,
    },
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        ]
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "*", "M", "-", "*", "E"],
        "num_hidden_layers": 6,
    },
    "openelm": {
        "num_transformer_layers": 2,
        "model_dim": 128,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 1],
        "ffn_multipliers": [1.0, 1.0],
        "ffn_dim_divisor": 32,
    },
    "qwen": {"kv_channels": 32},
    "spark2_5": {
        "rope_parameters": {FULL: _ROPE, SLIDING: _ROPE},
        "layer_types": PATTERN,
        "hidden_act": "gelu",
    },
    # Its forward writes to the logits of tokens 100256 and more.
    "phi3small": {"vocab_size": 100_352, "ff_intermediate_size": 128},
    "phixtral": {"model_dim": 128, "num_vocab": 128},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 32},
    "step3p5": {
        "num_attention_groups": 2,
        "layer_types": PATTERN,
        "moe_top_k": 2,
        "share_expert_dim": 64,
        "moe_layers_enum": "1,2,3",
    },
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{**_PACKED, "embedding": False, "block": 0}],
    },
    "recurrent_gemma": {
        "block_types": ["recurrent", "recurrent", "attention"],
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
    },
}
"""What is special to a family, over COMMON; for nested ones of their text model, or of both."""
