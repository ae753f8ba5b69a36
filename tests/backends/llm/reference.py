"""transformers as the engine's measure: SmolLM2 in its LlamaForCausalLM, with the weights that we loaded.

Loading through transformers' own GGUF path takes most of a minute and a package more; digests of what it gave are in
`test_weights.py`.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from backends.llm.config import ModelConfig, read_config
from backends.llm.weights import find_model, load_weights


def smollm2_as_transformers(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """In eval mode, without gradients. Takes a few seconds."""
    path = find_model("smollm2")
    config = read_config(path)
    return as_transformers(config, load_weights(path, config, dtype), dtype)


def as_transformers(config: ModelConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama without rope scaling around these very tensors: nothing is copied."""
    assert config.family == "llama"
    assert config.rope_scaling is None
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.context_len,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=config.is_tied,
                dtype=dtype,
            )
        )
    rotary = type(model.model.rotary_emb)(model.config)  # Its buffer is in no state dict.
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config.is_tied else [])
    model.tie_weights()
    model.model.rotary_emb = rotary
    model.train(False)
    model.requires_grad_(False)
    return model
