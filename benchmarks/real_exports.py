"""Write networks with random weights as ONNX files, the way users of PyTorch and scikit-learn export them.

    python benchmarks/real_exports.py DIRECTORY [--only TEXT]

Needs torch, torchvision, timm, transformers, onnxscript and skl2onnx beside ONNX Runtime: `make real-models` makes an
environment of them. Half of the networks go through torch's new exporter, half through the old one with older operator
sets. Some files are then quantised, converted to half precision, or saved as ONNX Runtime optimises them, with its own
tools. A file that is there is left; what fails is named at the end.
"""

import argparse
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Maker = Callable[[], Any]
_IMAGE = (1, 3, 224, 224)
_WORDS = 64


@dataclass(frozen=True)
class Export:
    """A torch module's maker and its inputs' shapes; whole numbers where `words`. `opset` is of the old exporter."""

    make: Maker
    shapes: Sequence[tuple[int, ...]] = (_IMAGE,)
    opset: int | None = None
    words: bool = False


def _torchvision(name: str, part: str = "") -> Maker:
    def make() -> Any:
        from torchvision import models

        extra: dict[str, Any] = {"weights_backbone": None} if part == "segmentation" else {}
        extra |= {"init_weights": True} if name in {"googlenet", "inception_v3"} else {}
        return getattr(getattr(models, part) if part else models, name)(weights=None, **extra)

    return make


def _timm(name: str) -> Maker:
    def make() -> Any:
        import timm

        return timm.create_model(name, pretrained=False, exportable=True)

    return make


_SMALL: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def _transformers(name: str, part: str = "", **config: Any) -> Maker:
    """Return the maker of a model, or of its `part`, that gives its last hidden state alone."""

    def make() -> Any:
        import torch
        import transformers

        kind = getattr(transformers, f"{name}Config")(attn_implementation="eager", **config)
        model = getattr(transformers, f"{name}{part}Model")(kind).eval()

        class OneOutput(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: Any) -> Any:
                extra = {"use_cache": False} if hasattr(kind, "use_cache") else {}
                return self.model(x, **extra).last_hidden_state

        return OneOutput()

    return make


def _recurrent(kind: str, layers: int = 1, *, both: bool = False) -> Maker:
    def make() -> Any:
        from torch import nn

        class Tagger(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(1000, 64)
                self.cells = getattr(nn, kind)(64, 128, layers, batch_first=True, bidirectional=both)
                self.tags = nn.Linear(256 if both else 128, 20)

            def forward(self, x: Any) -> Any:
                return self.tags(self.cells(self.words(x))[0])

        return Tagger()

    return make


def _unet() -> Any:
    import torch
    from torch import nn

    def twice(before: int, after: int) -> Any:
        first = [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*first, nn.Conv2d(after, after, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([twice(3, 16), twice(16, 32), twice(32, 64)])
            self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
            self.merge = nn.ModuleList([twice(64, 32), twice(32, 16)])
            self.last = nn.Conv2d(16, 2, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for step in self.down:
                x = step(x)
                kept.append(x)
                x = nn.functional.max_pool2d(x, 2) if len(kept) < len(self.down) else x
            for step, merge, before in zip(self.up, self.merge, reversed(kept[:-1]), strict=True):
                x = merge(torch.cat([step(x), before], 1))
            return self.last(x)

    return UNet()


def _super_resolution() -> Any:
    from torch import nn

    first = [nn.Conv2d(1, 64, 5, padding=2), nn.PReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.PReLU()]
    return nn.Sequential(*first, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3))


def _generator() -> Any:
    from torch import nn

    steps: list[Any] = []
    for before, after in ((64, 128), (128, 64), (64, 32)):
        steps += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*steps, nn.Conv2d(32, 3, 3, padding=1), nn.Tanh())


def _waves() -> Any:
    from torch import nn

    steps: list[Any] = []
    for before, after in ((1, 32), (32, 64), (64, 64)):
        steps += [nn.Conv1d(before, after, 9, 4, 4), nn.GroupNorm(8, after), nn.SiLU()]
    return nn.Sequential(*steps, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))


def _encoder() -> Any:
    from torch import nn

    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2, enable_nested_tensor=False
    )


_TOKENS: dict[str, Any] = {"shapes": ((1, _WORDS),), "words": True}
_BERT: dict[str, Any] = {**_SMALL, "intermediate_size": 512}
_LLAMA: dict[str, Any] = {**_BERT, "num_key_value_heads": 2}
_VISION: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}
EXPORTS = {
    "tv_googlenet": Export(_torchvision("googlenet"), opset=11),
    "tv_mnasnet0_5": Export(_torchvision("mnasnet0_5"), opset=9),
    "tv_mobilenet_v3_small": Export(_torchvision("mobilenet_v3_small")),
    "tv_regnet_y_400mf": Export(_torchvision("regnet_y_400mf")),
    "tv_resnext50_32x4d": Export(_torchvision("resnext50_32x4d"), opset=13),
    "tv_resnet34": Export(_torchvision("resnet34"), opset=7),
    "tv_densenet121": Export(_torchvision("densenet121")),
    "tv_efficientnet_b1": Export(_torchvision("efficientnet_b1"), ((1, 3, 240, 240),), opset=17),
    "tv_shufflenet_v2_x0_5": Export(_torchvision("shufflenet_v2_x0_5")),
    "tv_squeezenet1_0": Export(_torchvision("squeezenet1_0"), opset=9),
    "tv_convnext_tiny": Export(_torchvision("convnext_tiny")),
    "tv_swin_t": Export(_torchvision("swin_t"), opset=17),
    "tv_lraspp_mobilenet_v3_large": Export(_torchvision("lraspp_mobilenet_v3_large", "segmentation"), opset=16),
    "tv_mc3_18": Export(_torchvision("mc3_18", "video"), ((1, 3, 8, 64, 64),), opset=17),
    "timm_resnet10t": Export(_timm("resnet10t.c3_in1k")),
    "timm_mixer_s32_224": Export(_timm("mixer_s32_224")),
    "timm_resmlp_12_224": Export(_timm("resmlp_12_224"), opset=14),
    "timm_mobilevit_xxs": Export(_timm("mobilevit_xxs"), ((1, 3, 256, 256),)),
    "timm_ghostnet_100": Export(_timm("ghostnet_100"), opset=12),
    "timm_repvgg_a0": Export(_timm("repvgg_a0"), opset=13),
    "timm_levit_128s": Export(_timm("levit_128s")),
    "timm_edgenext_xx_small": Export(_timm("edgenext_xx_small"), ((1, 3, 256, 256),)),
    "timm_deit_tiny_patch16_224": Export(_timm("deit_tiny_patch16_224")),
    "timm_poolformer_s12": Export(_timm("poolformer_s12"), opset=17),
    "timm_xcit_nano_12_p16_224": Export(_timm("xcit_nano_12_p16_224")),
    "timm_dla46_c": Export(_timm("dla46_c"), opset=11),
    "timm_mobilenetv4_conv_small": Export(_timm("mobilenetv4_conv_small")),
    "timm_tf_efficientnet_lite0": Export(_timm("tf_efficientnet_lite0"), opset=15),
    "timm_lcnet_050": Export(_timm("lcnet_050"), opset=10),
    "hf_bert": Export(_transformers("Bert", **_BERT), **_TOKENS),
    "hf_bert_old": Export(_transformers("Bert", **_BERT), **_TOKENS, opset=12),
    "hf_distilbert": Export(
        _transformers("DistilBert", vocab_size=1000, dim=128, n_layers=2, n_heads=4, hidden_dim=512), **_TOKENS
    ),
    "hf_albert": Export(_transformers("Albert", embedding_size=64, **_BERT), **_TOKENS, opset=14),
    "hf_electra": Export(_transformers("Electra", embedding_size=64, **_BERT), **_TOKENS),
    "hf_roberta": Export(_transformers("Roberta", **_BERT), **_TOKENS, opset=17),
    "hf_gpt2": Export(_transformers("GPT2", vocab_size=1000, n_embd=128, n_layer=2, n_head=4), **_TOKENS),
    "hf_llama": Export(_transformers("Llama", **_LLAMA), **_TOKENS),
    "hf_qwen2": Export(_transformers("Qwen2", **_LLAMA), **_TOKENS),
    "hf_opt": Export(_transformers("OPT", ffn_dim=512, word_embed_proj_dim=128, **_SMALL), **_TOKENS),
    "hf_t5_encoder": Export(
        _transformers("T5", "Encoder", vocab_size=1000, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4),
        **_TOKENS,
        opset=17,
    ),
    "hf_vit": Export(_transformers("ViT", **_VISION)),
    "hf_clip_vision": Export(_transformers("CLIPVision", **_VISION)),
    "hf_wav2vec2": Export(
        _transformers("Wav2Vec2", conv_dim=(64,) * 7, num_conv_pos_embedding_groups=4, **_VISION), ((1, 16000),)
    ),
    "hf_segformer": Export(_transformers("Segformer", num_encoder_blocks=4), opset=17),
    "own_lstm": Export(_recurrent("LSTM"), **_TOKENS),
    "own_lstm_both": Export(_recurrent("LSTM", 2, both=True), **_TOKENS, opset=14),
    "own_gru": Export(_recurrent("GRU"), **_TOKENS, opset=17),
    "own_unet": Export(_unet, ((1, 3, 128, 128),)),
    "own_super_resolution": Export(_super_resolution, ((1, 1, 96, 96),), opset=11),
    "own_generator": Export(_generator, ((1, 64, 4, 4),)),
    "own_waves": Export(_waves, ((1, 1, 8000),), opset=17),
    "own_encoder": Export(_encoder, ((1, 48, 128),)),
}
VARIANTS = {
    "tv_mobilenet_v3_small": ("float16", "qdq"),
    "timm_resnet10t": ("float16", "qdq", "qoperator", "dynamic"),
    "hf_bert_old": ("float16", "dynamic", "optimised"),
    "hf_roberta": ("qdq",),
    "timm_repvgg_a0": ("qdq", "optimised"),
    "own_lstm": ("dynamic",),
    "own_unet": ("float16",),
}
"""Files that are made of another one, and how."""


@functools.cache
def _prepare_torch() -> Any:
    """Declare operators of torchvision, which lacks them where it was built for GPUs and torch was not."""
    import torch

    if torch.version.cuda is None and "+cpu" not in metadata.version("torchvision"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def export(made: Export, path: Path) -> None:
    """Write a network."""
    import torch

    _prepare_torch()
    torch.manual_seed(0)
    model = made.make().eval()
    draw = (lambda shape: torch.randint(0, 100, shape)) if made.words else torch.randn
    inputs = tuple(draw(shape) for shape in made.shapes)
    with torch.no_grad():
        if made.opset:
            torch.onnx.export(model, inputs, str(path), dynamo=False, opset_version=made.opset, input_names=["x"])
        else:
            torch.onnx.export(model, inputs, str(path), dynamo=True, external_data=False, verbose=False)


class _Readings:
    """Inputs for the calibration of a quantised network."""

    def __init__(self, path: Path) -> None:
        rng = np.random.default_rng(0)
        self._left = [{value.name: _drawn(rng, value) for value in onnx.load(path).graph.input} for _ in range(4)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def _drawn(rng: np.random.Generator, value: onnx.ValueInfoProto) -> np.ndarray:
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if kind.elem_type == onnx.TensorProto.FLOAT:
        return rng.standard_normal(shape).astype(np.float32)
    return rng.integers(0, 100, shape)


def convert(source: Path, how: str, path: Path) -> None:
    """Write a file in another form.

    Activations are quantised without signs, as the quantiser's documentation advises for x86: signed ones, its default,
    are slow in QLinear operators there, of which it warns.
    """
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.transformers import float16

    if how == "float16":
        onnx.save(float16.convert_float_to_float16(onnx.load(source)), path)
    elif how == "dynamic":
        quantization.quantize_dynamic(source, path)
    elif how == "optimised":
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(path)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    else:
        form = quantization.QuantFormat.QDQ if how == "qdq" else quantization.QuantFormat.QOperator
        quantization.quantize_static(
            source, path, _Readings(source), quant_format=form, per_channel=how == "qdq",
            activation_type=quantization.QuantType.QUInt8,
        )  # fmt: skip


def learn(name: str, path: Path) -> None:
    """Write a network of scikit-learn that has learnt a little."""
    from skl2onnx import to_onnx
    from sklearn import ensemble, linear_model, neural_network, svm

    kinds = {
        "sk_mlp": neural_network.MLPClassifier((64, 32), max_iter=30),
        "sk_forest": ensemble.RandomForestRegressor(10, max_depth=5),
        "sk_logistic": linear_model.LogisticRegression(),
        "sk_svm": svm.SVC(probability=False),
    }
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 16)).astype(np.float32)
    kind = kinds[name].fit(rows, (rows[:, 0] > rows[:, 1]).astype(np.int64))
    options = {"zipmap": False} if hasattr(kind, "classes_") else None
    path.write_bytes(to_onnx(kind, rows[:8], options={id(kind): options} if options else None).SerializeToString())


LEARNT = ("sk_mlp", "sk_forest", "sk_logistic", "sk_svm")


def main() -> int:
    """Write what is not there; 1 if some of it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose name holds this")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[Path], None]] = {}
    for name, made in EXPORTS.items():
        steps[name] = functools.partial(export, made)
    for base, hows in VARIANTS.items():
        for how in hows:
            steps[f"{base}_{how}"] = functools.partial(convert, given.directory / f"{base}.onnx", how)
    for name in LEARNT:
        steps[name] = functools.partial(learn, name)
    failed = []
    for name, step in steps.items():
        path = given.directory / f"{name}.onnx"
        if given.only in name and not path.exists():
            scratch = path.with_suffix(".part")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    step(scratch)
                scratch.replace(path)
            except Exception as error:  # noqa: BLE001 - each package has its own
                failed.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                scratch.unlink(missing_ok=True)
            print(name, "failed" if failed and failed[-1].startswith(name) else "written", flush=True)
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
