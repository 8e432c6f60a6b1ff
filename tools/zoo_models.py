"""The networks of the zoo: how each is made with torch, randomly initialised and without any download.

Needs torch, torchvision, timm and transformers, so it runs in an environment of its own (see make_zoo.py).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

# torchvision's wheel on PyPI expects CUDA libraries; declaring its two operators first lets the model classes import.
_OPERATORS = torch.library.Library("torchvision", "DEF")
_OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@dataclass(frozen=True)
class Recipe:
    """One network: `build` makes the module, `inputs` its example inputs (batch 2: a batch of 1 would be baked in).

    `gain` is what convolutions multiply variance by, times three: 6 suits a ReLU; squashing activations need more.
    """

    kind: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    gain: float = 6.0


class _First(torch.nn.Module):
    """Keeps the first tensor of a structured output: what a transformers model returns is a dictionary."""

    def __init__(self, inner: torch.nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        output = self.inner(**dict(zip(self.names, tensors, strict=True)), **self.fixed)
        if isinstance(output, dict):
            return next(iter(output.values()))
        return output[0] if isinstance(output, tuple) else output


def _image(size: int = 224, channels: int = 3) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"input": torch.randn(2, channels, size, size)}


def _tokens(length: int) -> Callable[[], dict[str, torch.Tensor]]:
    # A mask is always passed: without one, transformers adds a packed-sequence check that TVM cannot compile.
    return lambda: {
        "input_ids": torch.randint(0, 1000, (2, length)),
        "attention_mask": torch.ones(2, length, dtype=torch.int64),
    }


def _torchvision(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import torchvision

        extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **extra)

    return build


def _segmenter(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import torchvision

        return _First(torchvision.models.get_model(name, weights=None, weights_backbone=None), ("x",))

    return build


def _positional(module: torch.nn.Module) -> torch.nn.Module:
    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = self.inner(x)
            return next(iter(output.values())) if isinstance(output, dict) else output

    return Positional()


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return build


def _hf(
    config: str, model: str, names: tuple[str, ...] = ("input_ids", "attention_mask"), **settings: Any
) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import transformers

        made = getattr(transformers, config)(attn_implementation="eager", **settings)
        fixed = {"use_cache": False} if "CausalLM" in model or "LMHead" in model else {}
        return _First(getattr(transformers, model)(made), names, return_dict=True, **fixed)

    return build


class _Mlp(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            torch.nn.Linear(784, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, 256),
            torch.nn.ReLU(),
            torch.nn.Linear(256, 10),
        )


class _Generator(torch.nn.Sequential):
    """The generator of DCGAN (Radford et al., 2016): transposed convolutions from 100 numbers to a 64x64 image."""

    def __init__(self) -> None:
        layers: list[torch.nn.Module] = []
        for given, made, stride, pad in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
            layers += [
                torch.nn.ConvTranspose2d(given, made, 4, stride, pad, bias=False),
                torch.nn.BatchNorm2d(made),
                torch.nn.ReLU(),
            ]
        super().__init__(*layers, torch.nn.ConvTranspose2d(64, 3, 4, 2, 1), torch.nn.Tanh())


_TORCHVISION = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnext50_32x4d",
    "wide_resnet50_2",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_v2_s",
    "squeezenet1_0",
    "squeezenet1_1",
    "vgg11",
    "vgg16",
    "alexnet",
    "densenet121",
    "googlenet",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "mnasnet1_0",
    "regnet_y_400mf",
    "regnet_x_800mf",
    "convnext_tiny",
    "vit_b_32",
    "vit_b_16",
    "swin_t",
)
_TIMM = (
    "deit_tiny_patch16_224",
    "mobilenetv4_conv_small",
    "mobilenetv1_100",
    "ghostnet_100",
    "mixer_b16_224",
    "resmlp_12_224",
    "poolformer_s12",
    "repvgg_a0",
    "cspdarknet53",
    "seresnet50",
    "tf_efficientnet_lite0",
    "mobilevit_s",
    "res2net50_26w_4s",
    "dla34",
    "pvt_v2_b0",
)
_BERT = {"vocab_size": 30522, "max_position_embeddings": 512}


def _bert(layers: int, hidden: int, heads: int) -> Callable[[], torch.nn.Module]:
    return _hf(
        "BertConfig",
        "BertModel",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        **_BERT,
    )


def _whisper_encoder() -> torch.nn.Module:
    import transformers

    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, attn_implementation="eager"
    )
    model = transformers.WhisperModel(config)
    return _First(model.encoder, ("input_features",), return_dict=True)


RECIPES: dict[str, Recipe] = {
    **{name: Recipe("image", _torchvision(name), _image()) for name in _TORCHVISION},
    "inception_v3": Recipe("image", _torchvision("inception_v3"), _image(299)),
    **{name: Recipe("image", _timm(name), _image()) for name in _TIMM},
    "lcnet_100": Recipe("image", _timm("lcnet_100"), _image(), gain=12.0),
    "fcn_resnet50": Recipe("segmentation", lambda: _positional(_segmenter("fcn_resnet50")().inner), _image()),
    "lraspp_mobilenet_v3_large": Recipe(
        "segmentation", lambda: _positional(_segmenter("lraspp_mobilenet_v3_large")().inner), _image()
    ),
    "bert-tiny": Recipe("text", _bert(2, 128, 2), _tokens(128)),
    "bert-mini": Recipe("text", _bert(4, 256, 4), _tokens(128)),
    "bert-small": Recipe("text", _bert(4, 512, 8), _tokens(128)),
    "bert-base": Recipe("text", _bert(12, 768, 12), _tokens(128)),
    "minilm-l6": Recipe(
        "text",
        _hf(
            "BertConfig",
            "BertModel",
            num_hidden_layers=6,
            hidden_size=384,
            num_attention_heads=12,
            intermediate_size=1536,
            **_BERT,
        ),
        _tokens(128),
    ),
    "distilbert": Recipe("text", _hf("DistilBertConfig", "DistilBertModel"), _tokens(128)),
    "gpt2-4L": Recipe("decoder", _hf("GPT2Config", "GPT2LMHeadModel", n_layer=4), _tokens(128)),
    "qwen2-0.5b-2L": Recipe(
        "decoder",
        _hf(
            "Qwen2Config",
            "Qwen2ForCausalLM",
            num_hidden_layers=2,
            hidden_size=896,
            intermediate_size=4864,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=32000,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        ),
        _tokens(128),
    ),
    "tinyllama-2L": Recipe(
        "decoder",
        _hf(
            "LlamaConfig",
            "LlamaForCausalLM",
            num_hidden_layers=2,
            hidden_size=2048,
            intermediate_size=5632,
            num_attention_heads=32,
            num_key_value_heads=4,
            vocab_size=32000,
            max_position_embeddings=2048,
        ),
        _tokens(128),
    ),
    "clip-vit-b32-vision": Recipe(
        "image",
        _hf("CLIPVisionConfig", "CLIPVisionModel", ("pixel_values",)),
        lambda: {"pixel_values": torch.randn(2, 3, 224, 224)},
    ),
    "whisper-tiny-encoder": Recipe(
        "audio",
        _whisper_encoder,
        lambda: {"input_features": torch.randn(2, 80, 3000)},
    ),
    "dcgan-generator": Recipe("image", _Generator, lambda: {"input": torch.randn(2, 100, 1, 1)}),
    "mlp-mnist": Recipe("image", _Mlp, lambda: {"input": torch.randn(2, 784)}),
}
