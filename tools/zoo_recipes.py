"""What a recipe of the zoo is, and the ways to make a module with torch, randomly initialised, without any download.

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


class First(torch.nn.Module):
    """Keeps the first tensor of a structured output: what a transformers model returns is a dictionary."""

    def __init__(self, inner: torch.nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Run the module on tensors in the order of their names."""
        output = self.inner(**dict(zip(self.names, tensors, strict=True)), **self.fixed)
        if isinstance(output, dict):
            return next(iter(output.values()))
        return output[0] if isinstance(output, tuple) else output


def image(size: int = 224, channels: int = 3) -> Callable[[], dict[str, torch.Tensor]]:
    """Two images."""

    return lambda: {"input": torch.randn(2, channels, size, size)}


def tokens(length: int) -> Callable[[], dict[str, torch.Tensor]]:
    """Two sequences of token numbers and their masks."""

    # A mask is always passed: without one, transformers adds a packed-sequence check that TVM cannot compile.
    return lambda: {
        "input_ids": torch.randint(0, 1000, (2, length)),
        "attention_mask": torch.ones(2, length, dtype=torch.int64),
    }


def torchvision_model(name: str) -> Callable[[], torch.nn.Module]:
    """A classifier or video network of torchvision."""

    def build() -> torch.nn.Module:
        import torchvision

        extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **extra)

    return build


class _Segmenter(torch.nn.Module):
    """Keeps the main map of a torchvision segmentation network, which returns a dictionary."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)["out"]
        return output


def segmenter(name: str) -> Callable[[], torch.nn.Module]:
    """A segmentation network of torchvision."""

    def build() -> torch.nn.Module:
        import torchvision

        return _Segmenter(torchvision.models.get_model(name, weights=None, weights_backbone=None))

    return build


class _Detector(torch.nn.Module):
    """A torchvision detector's backbone and dense head, without anchors and post-processing, whose
    sizes depend on data.

    A two-stage detector gives its region proposal network's scores and boxes.
    """

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.backbone = inner.backbone
        self.two_stage = hasattr(inner, "rpn")
        self.head = inner.rpn.head if self.two_stage else inner.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.head(list(self.backbone(x).values()))
        if self.two_stage:
            scores, boxes = found
            return torch.cat([torch.cat([s, b], 1).flatten(1) for s, b in zip(scores, boxes, strict=True)], 1)
        return torch.cat([found["cls_logits"], found["bbox_regression"]], 2)


def detector(name: str) -> Callable[[], torch.nn.Module]:
    """A detector of torchvision up to its dense outputs."""

    def build() -> torch.nn.Module:
        import torchvision

        make = getattr(torchvision.models.detection, name)
        return _Detector(make(weights=None, weights_backbone=None))

    return build


def timm_model(name: str, *, fused: bool = True) -> Callable[[], torch.nn.Module]:
    """A classifier of timm; the exporter cannot translate `fused` attention on five-dimensional tensors."""

    def build() -> torch.nn.Module:
        import timm

        timm.layers.set_fused_attn(fused)
        return timm.create_model(name, pretrained=False)

    return build


def transformers_model(
    config: str, model: str, names: tuple[str, ...] = ("input_ids", "attention_mask"), **settings: Any
) -> Callable[[], torch.nn.Module]:
    """A model of transformers, made from its configuration."""

    def build() -> torch.nn.Module:
        import transformers

        made = getattr(transformers, config)(attn_implementation="eager", **settings)
        fixed = {"use_cache": False} if "CausalLM" in model or "LMHead" in model else {}
        return First(getattr(transformers, model)(made), names, return_dict=True, **fixed)

    return build
