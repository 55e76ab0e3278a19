"""Architectures of Hugging Face transformers, from tiny configurations: random weights, nothing is downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.matrix.cases import Case

Given = tuple[tuple[Any, ...], dict[str, Any]]
WORDS = 64


def _text() -> Given:
    ids = torch.randint(4, WORDS, (2, 10))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    return (), {"input_ids": ids, "attention_mask": mask, "labels": ids}


def _sequences() -> Given:
    """Without padding: state-space models take no mask."""
    ids = torch.randint(4, WORDS, (2, 10))
    return (), {"input_ids": ids, "labels": ids}


def _translation() -> Given:
    return (), {"input_ids": torch.randint(4, WORDS, (2, 10)), "labels": torch.randint(4, WORDS, (2, 6))}


def _images() -> Given:
    return (), {"pixel_values": torch.rand(2, 3, 32, 32)}


def _large_images() -> Given:
    return (), {"pixel_values": torch.rand(1, 3, 64, 64)}


def _pairs() -> Given:
    ids = torch.randint(4, WORDS - 1, (2, 8))
    ids[:, -1] = WORDS - 1  # the end of the text, whose state stands for it
    return (), {"input_ids": ids, "pixel_values": torch.rand(2, 3, 32, 32), "return_loss": True}


def _waves() -> Given:
    return (), {"input_values": torch.randn(2, 1600), "labels": torch.randint(1, 30, (2, 2))}


def _spectrograms() -> Given:
    return (), {"input_features": torch.randn(2, 8, 40), "labels": torch.randint(4, WORDS, (2, 6))}


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture: its class, its configuration's class, the arguments and what it is given."""

    name: str
    group: str
    model: str
    config: str
    arguments: Mapping[str, Any]
    batch: Callable[[], Given] = _text
    sampled: bool = False
    checkpoint: Mapping[str, Any] | None = None
    """Arguments of `torch.utils.checkpoint.checkpoint`, where its blocks are to be recomputed."""
    tokens: Mapping[str, int] = field(
        default_factory=lambda: {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    )


SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}  # several query heads share keys and values
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
STEPWISE = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
WAVES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_length": 2,
    "num_feat_extract_layers": 3,
}
STATES = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
GPT2 = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
MIXTURE = {"num_experts_per_tok": 2}

ROWS = (
    Row("BERT", "encoder", "BertForMaskedLM", "BertConfig", SMALL, sampled=True),
    Row("RoBERTa", "encoder", "RobertaForMaskedLM", "RobertaConfig", SMALL),
    Row(
        "DistilBERT",
        "encoder",
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": WORDS,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 32,
        },
    ),
    Row("ELECTRA", "encoder", "ElectraForMaskedLM", "ElectraConfig", {**SMALL, "embedding_size": 16}),
    Row(
        "ALBERT",
        "encoder",
        "AlbertForMaskedLM",
        "AlbertConfig",
        {**SMALL, "embedding_size": 16},
        sampled=True,
    ),
    Row(
        "DeBERTa-v2",
        "encoder",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    Row(
        "ModernBERT",
        "encoder",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        SMALL,
        tokens={"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
    ),
    Row("GPT-2", "decoder", "GPT2LMHeadModel", "GPT2Config", GPT2, sampled=True),
    Row(
        "GPT-2, gradient checkpointing",
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2,
        checkpoint={"use_reentrant": False},
        sampled=True,
    ),
    Row(
        "GPT-2, reentrant checkpointing",
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2,
        checkpoint={"use_reentrant": True},
    ),
    Row("Llama", "decoder", "LlamaForCausalLM", "LlamaConfig", GROUPED, sampled=True),
    Row("Mistral", "decoder", "MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 8}),
    Row("Qwen3", "decoder", "Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    Row("Gemma 2", "decoder", "Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}),
    Row("Phi-3", "decoder", "Phi3ForCausalLM", "Phi3Config", GROUPED),
    Row(
        "OPT",
        "decoder",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 32,
        },
    ),
    Row(
        "BLOOM",
        "decoder",
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    Row("GPT-NeoX", "decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL),
    Row(
        "Falcon",
        "decoder",
        "FalconForCausalLM",
        "FalconConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    Row("T5", "seq2seq", "T5ForConditionalGeneration", "T5Config", T5, _translation, sampled=True),
    Row("BART", "seq2seq", "BartForConditionalGeneration", "BartConfig", STEPWISE, _translation),
    Row("Marian", "seq2seq", "MarianMTModel", "MarianConfig", STEPWISE, _translation),
    Row("Pegasus", "seq2seq", "PegasusForConditionalGeneration", "PegasusConfig", STEPWISE, _translation),
    Row("ViT", "vision", "ViTForImageClassification", "ViTConfig", VISION, _images, sampled=True, tokens={}),
    Row("DINOv2", "vision", "Dinov2Model", "Dinov2Config", {**VISION, "mlp_ratio": 2}, _images, tokens={}),
    Row(
        "Swin",
        "vision",
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        _images,
        tokens={},
    ),
    Row(
        "ConvNeXt",
        "vision",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]},
        _images,
        tokens={},
    ),
    Row(
        "SegFormer",
        "vision",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [16, 16, 32, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 32,
        },
        _large_images,
        tokens={},
    ),
    Row(
        "CLIP",
        "vision and text",
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**SMALL, "eos_token_id": WORDS - 1}, "vision_config": VISION, "projection_dim": 16},
        _pairs,
        tokens={},
    ),
    Row("wav2vec 2.0", "speech", "Wav2Vec2ForCTC", "Wav2Vec2Config", WAVES, _waves, sampled=True),
    Row("HuBERT", "speech", "HubertForCTC", "HubertConfig", WAVES, _waves),
    Row(
        "Whisper",
        "speech",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{key: value for key, value in STEPWISE.items() if key != "max_position_embeddings"},
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 20,
        },
        _spectrograms,
    ),
    Row(
        "Mixtral",
        "mixture of experts",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GROUPED, **MIXTURE, "num_local_experts": 4, "output_router_logits": True},
        sampled=True,
    ),
    Row(
        "Qwen2-MoE",
        "mixture of experts",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {
            **GROUPED,
            **MIXTURE,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32,
        },
    ),
    Row(
        "Switch Transformer",
        "mixture of experts",
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        {**T5, "num_experts": 4, "expert_capacity": 16},
        _translation,
    ),
    Row("Mamba", "state space", "MambaForCausalLM", "MambaConfig", STATES, _sequences, sampled=True),
    Row(
        "Mamba-2",
        "state space",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {**STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        _sequences,
    ),
    Row("Falcon Mamba", "state space", "FalconMambaForCausalLM", "FalconMambaConfig", STATES, _sequences),
)


def _build(row: Row) -> nn.Module:
    library = importlib.import_module("transformers")
    config = getattr(library, row.config)(**row.arguments, **row.tokens)
    model: nn.Module = getattr(library, row.model)(config)
    if row.checkpoint is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(row.checkpoint))  # type: ignore[operator]
    return model.train()


def cases() -> list[Case]:
    """A row for each architecture."""
    return [
        Case(row.name, f"transformers {row.group}", partial(_build, row), row.batch, row.sampled)
        for row in ROWS
    ]
