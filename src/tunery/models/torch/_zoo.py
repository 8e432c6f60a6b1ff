"""Torch's own module of a network, as the public library has it that the zoo took it from: for comparisons. It is
imported in processes of torch only. Weights are random, since nothing is downloaded; latency does not depend on them.
The zoo's graphs themselves were exported by `tools/make_zoo.py`."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from tunery._errors import ModelError
from tunery.models.torch._export import data_of, load

_BERTS = {"bert-tiny": (2, 128, 2), "bert-mini": (4, 256, 4), "bert-small": (4, 512, 8), "bert-base": (12, 768, 12)}
"""Layers, width and heads (Turc et al., 2019)."""


def module_of(source: str, *, trust: bool = False) -> Any:
    """Return the module of `zoo:NAME`, or of a saved program (`.pt2`), ready to be run."""
    if source.endswith(".pt2"):
        with tempfile.TemporaryDirectory() as scratch:
            return load(data_of(Path(source), Path(scratch), trust=trust), trust=trust).module()
    name = source.removeprefix("zoo:")
    for library in (_torchvision, _timm, _transformers):
        try:
            module = library(name)
        except ImportError:
            continue
        if module is not None:
            return module.eval()
    raise ModelError(f"no installed library of torch has {source}; torchvision, timm and transformers are asked")


def _torchvision(name: str) -> Any:
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
        # The package expects CUDA libraries; where torch has none its operators must be declared before the import.
        global _operators  # noqa: PLW0603 - they are gone with the object
        _operators = torch.library.Library("torchvision", "DEF")
        for operator in ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                         "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"):  # fmt: skip
            _operators.define(operator)
    from torchvision import models

    if name not in models.list_models():
        return None
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **extra)


_operators: Any = None


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False) if timm.is_model(name) else None


def _transformers(name: str) -> Any:
    import transformers

    if name == "distilbert":
        return transformers.DistilBertModel(transformers.DistilBertConfig())
    if name not in _BERTS:
        return None
    layers, width, heads = _BERTS[name]
    return transformers.BertModel(
        transformers.BertConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
        )
    )
