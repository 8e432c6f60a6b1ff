"""The zoo's networks for text and sound: encoders, decoders, speech.

Widths are the published ones; a name that ends in `-4L` says how many layers were kept, since a further layer repeats
the same operators. Vocabularies are cut to 32,000.
"""

from collections.abc import Callable

import torch
from zoo_recipes import First, Recipe, tokens, transformers_model

_VOCABULARY = {"vocab_size": 32000}


def _bert(layers: int, hidden: int, heads: int) -> Recipe:
    build = transformers_model(
        "BertConfig",
        "BertModel",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        vocab_size=30522,
        max_position_embeddings=512,
    )
    return Recipe("text", build, tokens(128))


def _encoder(family: str, layers: int, model: str = "Model", **settings: object) -> Recipe:
    build = transformers_model(f"{family}Config", f"{family}{model}", num_hidden_layers=layers, **settings)
    return Recipe("text", build, tokens(128))


def _decoder(
    family: str, layers: int, hidden: int, inner: int, heads: int, model: str = "ForCausalLM", **more: object
) -> Recipe:
    build = transformers_model(
        f"{family}Config",
        f"{family}{model}",
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        **{"vocab_size": 32000, "max_position_embeddings": 2048, **more},
    )
    return Recipe("decoder", build, tokens(128))


def _whisper(width: int, layers: int, heads: int) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import transformers

        config = transformers.WhisperConfig(
            d_model=width,
            encoder_layers=layers,
            encoder_attention_heads=heads,
            encoder_ffn_dim=4 * width,
            attn_implementation="eager",
        )
        return First(transformers.WhisperModel(config).encoder, ("input_features",), return_dict=True)

    return build


class _Part(torch.nn.Module):
    """The encoder of an encoder-decoder."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)[0]
        return output


def _encoder_of(config: str, model: str, **settings: object) -> Recipe:
    def build() -> torch.nn.Module:
        import transformers

        made = getattr(transformers, config)(attn_implementation="eager", **settings)
        return _Part(getattr(transformers, model)(made).get_encoder())

    return Recipe("text", build, tokens(128))


def _wave(family: str, model: str = "Model", **settings: object) -> Recipe:
    """One second of sound at 16 kHz."""
    build = transformers_model(f"{family}Config", f"{family}{model}", ("input_values",), **settings)
    return Recipe("audio", build, lambda: {"input_values": torch.randn(2, 16000)})


def _mel(frames: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"input_features": torch.randn(2, 80, frames)}


RECIPES: dict[str, Recipe] = {
    "bert-tiny": _bert(2, 128, 2),
    "bert-mini": _bert(4, 256, 4),
    "bert-small": _bert(4, 512, 8),
    "bert-base": _bert(12, 768, 12),
    "bert-large-4L": _bert(4, 1024, 16),
    "minilm-l6": Recipe(
        "text",
        transformers_model(
            "BertConfig",
            "BertModel",
            num_hidden_layers=6,
            hidden_size=384,
            num_attention_heads=12,
            intermediate_size=1536,
            vocab_size=30522,
            max_position_embeddings=512,
        ),
        tokens(128),
    ),
    "distilbert": Recipe("text", transformers_model("DistilBertConfig", "DistilBertModel"), tokens(128)),
    "roberta-base-4L": _encoder("Roberta", 4, **_VOCABULARY),
    "albert-base-4L": _encoder(
        "Albert", 4, hidden_size=768, num_attention_heads=12, intermediate_size=3072, vocab_size=30000
    ),
    "electra-small-4L": _encoder(
        "Electra", 4, hidden_size=256, embedding_size=128, num_attention_heads=4, intermediate_size=1024
    ),
    "mobilebert-6L": _encoder("MobileBert", 6),
    "squeezebert-4L": _encoder("SqueezeBert", 4),
    "mpnet-base-4L": _encoder("MPNet", 4),
    "modernbert-base-4L": _encoder(
        "ModernBert", 4, **_VOCABULARY, pad_token_id=0, eos_token_id=1, bos_token_id=1, cls_token_id=1, sep_token_id=1
    ),
    "t5-small-encoder": _encoder_of("T5Config", "T5Model", **_VOCABULARY),
    "bart-base-encoder-3L": _encoder_of(
        "BartConfig",
        "BartModel",
        d_model=768,
        encoder_layers=3,
        decoder_layers=1,
        encoder_attention_heads=12,
        encoder_ffn_dim=3072,
        **_VOCABULARY,
    ),
    "clip-text-4L": Recipe(
        "text",
        transformers_model("CLIPTextConfig", "CLIPTextModel", num_hidden_layers=4, vocab_size=49408),
        tokens(77),
    ),
    "gpt2-4L": Recipe("decoder", transformers_model("GPT2Config", "GPT2LMHeadModel", n_layer=4), tokens(128)),
    "gpt-neo-2L": Recipe(
        "decoder",
        transformers_model(
            "GPTNeoConfig",
            "GPTNeoForCausalLM",
            num_layers=2,
            hidden_size=768,
            num_heads=12,
            attention_types=[[["global", "local"], 1]],
            **_VOCABULARY,
        ),
        tokens(128),
    ),
    "opt-125m-4L": Recipe(
        "decoder",
        transformers_model("OPTConfig", "OPTForCausalLM", num_hidden_layers=4, **_VOCABULARY),
        tokens(128),
    ),
    "bloom-560m-2L": Recipe(
        "decoder",
        transformers_model("BloomConfig", "BloomForCausalLM", n_layer=2, hidden_size=1024, n_head=16, **_VOCABULARY),
        tokens(128),
    ),
    "pythia-160m-4L": _decoder("GPTNeoX", 4, 768, 3072, 12),
    "qwen2-0.5b-2L": _decoder("Qwen2", 2, 896, 4864, 14, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3-0.6b-2L": _decoder(
        "Qwen3", 2, 1024, 3072, 16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True
    ),
    "tinyllama-2L": _decoder("Llama", 2, 2048, 5632, 32, num_key_value_heads=4),
    "llama-3.2-1b-1L": _decoder("Llama", 1, 2048, 8192, 32, num_key_value_heads=8, tie_word_embeddings=True),
    "gemma-2b-1L": _decoder("Gemma", 1, 2048, 16384, 8, num_key_value_heads=1, head_dim=256),
    "phi-1.5-1L": _decoder("Phi", 1, 2048, 8192, 32),
    "mistral-7b-1L": _decoder("Mistral", 1, 4096, 14336, 32, num_key_value_heads=8),
    "stablelm-1.6b-1L": _decoder("StableLm", 1, 2048, 5632, 32, num_key_value_heads=32),
    "starcoder2-3b-1L": _decoder("Starcoder2", 1, 3072, 12288, 24, num_key_value_heads=2),
    "olmo2-1b-1L": _decoder("Olmo2", 1, 2048, 8192, 16, num_key_value_heads=16),
    "whisper-tiny-encoder": Recipe("audio", _whisper(384, 4, 6), _mel(3000)),
    "whisper-base-encoder-2L": Recipe("audio", _whisper(512, 2, 8), _mel(3000)),
    "wav2vec2-base-4L": _wave("Wav2Vec2", num_hidden_layers=4),
    "hubert-base-2L": _wave("Hubert", num_hidden_layers=2),
    "data2vec-audio-2L": _wave("Data2VecAudio", num_hidden_layers=2),
    "sew-tiny-4L": _wave("SEW", num_hidden_layers=4, hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "ast-base-4L": Recipe(
        "audio",
        transformers_model("ASTConfig", "ASTModel", ("input_values",), num_hidden_layers=4, max_length=512),
        lambda: {"input_values": torch.randn(2, 512, 128)},
    ),
}
