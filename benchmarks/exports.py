"""What users meet who export a network today: is it compiled, right on five sets of inputs, or refused with a way out?

    python benchmarks/exports.py --make DIRECTORY     in an environment of its own, with versions as in the Makefile
    python benchmarks/exports.py DIRECTORY [--json FILE] [--only TEXT]     in tunery's own; `make exports` does both

The networks have random weights and the dynamic dimensions, several inputs and post-processing that exporters leave in.
A refusal counts as helpful if the line that it suggests compiles when copied. Exit code 1 if an output is wrong.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SETS = 5
TOLERANCE = {"single": 1e-3, "half": 2e-2, "int8": 5e-2, "qdq": 5e-2}
_SUGGESTED = re.compile(r"(?:for example with|write) ((?:--shape \S+ ?)+)")
_BLAMED = re.compile(r"onnx\.checker|report it|is a bug")
_SMALL: dict[str, Any] = {
    "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
_VISION: dict[str, Any] = {name: value for name, value in _SMALL.items() if name != "vocab_size"}


# -- making, in an environment of its own ------------------------------------------------------------------------------

_TINY: dict[str, Any] = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}  # fmt: skip
ROWS, BATCH = {0: "batch", 1: "sequence"}, {0: "batch"}
Plan = tuple[Callable[[], Any], Mapping[str, Any], Mapping[str, Mapping[int, str]]]


def _torch(plan: Plan, *, new: bool, opset: int = 18) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import torch

        torch.manual_seed(0)
        make, inputs, dynamic = plan
        module, names = _named(make().eval(), list(inputs)), list(inputs)
        how: dict[str, Any] = {"opset_version": opset, "dynamic_axes": dict(dynamic)}
        if new:
            shapes = {name: dict.fromkeys(dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in names}
            how = {"dynamic_shapes": (tuple(shapes.values()),), "verbose": False, "external_data": False}
        torch.onnx.export(module, tuple(inputs.values()), str(path), input_names=names, dynamo=new, **how)

    return write


def _named(model: Any, names: list[str]) -> Any:
    """Return a module that takes a model's inputs in this order, by their names where it has several."""
    import torch

    class Named(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            given = dict(zip(names, values, strict=True))
            outputs = self.model(**given) if len(names) > 1 or hasattr(model, "config") else self.model(*values)
            outputs = outputs["out"] if isinstance(outputs, dict) and "out" in outputs else outputs
            outputs = outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs
            while isinstance(outputs, list | tuple) and isinstance(outputs[0], list | tuple):
                outputs = outputs[0]
            return tuple(one for one in outputs if torch.is_tensor(one)) if isinstance(outputs, tuple) else outputs

    return Named().eval()


def _plans() -> dict[str, Plan]:
    import torch

    for operator in ("nms", "qnms"):  # torchvision's wheels lack them beside a torch without CUDA
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    import diffusers
    import timm
    import torchvision
    import transformers
    from torch import nn

    def made(name: str, part: str = "Model", **config: Any) -> Callable[[], Any]:
        def make() -> Any:
            kind = getattr(transformers, f"{name}Config")(**config)
            kind._attn_implementation = "eager"  # composed ones take it by no other way
            return getattr(transformers, f"{name}{part}")(kind)

        return make

    def seen(name: str, size: int = 64, **more: Any) -> Plan:
        return lambda: torchvision.models.get_model(name, weights=None, **more), image(size), {"x": BATCH}

    def shown(name: str, size: int = 64) -> Plan:
        return lambda: timm.create_model(name), image(size), {"x": BATCH}

    def image(size: int, name: str = "x") -> dict[str, Any]:
        return {name: torch.randn(1, 3, size, size)}

    words = torch.ones(1, 16, dtype=torch.int64)
    tokens = {"input_ids": words, "attention_mask": words, "token_type_ids": torch.zeros_like(words)}
    two = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    past = {f"{kind}_{layer}": torch.randn(1, 4, 8, 16) for layer in range(2) for kind in ("past_key", "past_value")}
    cached = {"input_ids": words[:, :1], "attention_mask": words[:, :9], **past}
    grown = {"input_ids": BATCH, "attention_mask": {0: "batch", 1: "total"}}
    grown |= {name: {0: "batch", 2: "past"} for name in past}
    small: dict[str, Any] = {"vocab_size": 500, "num_key_value_heads": 4, **_VISION}
    unet = {
        "sample": torch.randn(1, 4, 16, 16),
        "timestep": torch.ones(1),
        "encoder_hidden_states": torch.randn(1, 8, 32),
    }
    heard = {"input_features": torch.randn(1, 80, 200), "decoder_input_ids": words[:, :4]}
    maps = ("image_embeddings", "image_positional_embeddings", "dense_prompt_embeddings")
    sam = {name: torch.randn(1, 32, 8, 8) for name in maps} | {"sparse_prompt_embeddings": torch.randn(1, 1, 2, 32)}
    frames = {"image1": torch.randn(1, 3, 128, 128), "image2": torch.randn(1, 3, 128, 128)}

    def cnn() -> Any:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    return {
        "mlp": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)), {"x": torch.randn(2, 32)},
                {"x": BATCH}),
        "cnn": (cnn, {"x": torch.randn(2, 3, 64, 64)}, {"x": {0: "batch", 2: "height", 3: "width"}}),
        "bert": (made("Bert", **_SMALL), tokens, dict.fromkeys(tokens, ROWS)),
        "distilbert": (made("DistilBert", vocab_size=500, dim=64, n_layers=2, n_heads=4, hidden_dim=128), two,
                       dict.fromkeys(two, ROWS)),
        "vit": (made("ViT", **_VISION), image(224, "pixel_values"), {"pixel_values": BATCH}),
        "gpt2": (made("GPT2", vocab_size=500, n_embd=64, n_layer=2, n_head=4, use_cache=False), {"input_ids": words},
                 {"input_ids": ROWS}),
        "llama_cache": (lambda: _Cached(made("Llama", "ForCausalLM", use_cache=True, **small)()), cached, grown),
        "t5_encoder": (made("T5", "EncoderModel", vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_layers=2,
                            num_heads=4), two, dict.fromkeys(two, ROWS)),
        "whisper": (made("Whisper", vocab_size=500, max_source_positions=100, max_target_positions=448, use_cache=False,
                         pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **_TINY), heard,
                    {"decoder_input_ids": ROWS}),
        "vits": (made("Vits", vocab_size=38, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
                      flow_size=32, spectrogram_bins=33, upsample_initial_channel=32, upsample_rates=(4, 4),
                      upsample_kernel_sizes=(8, 8), resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 3),),
                      prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=2,
                      posterior_encoder_num_wavenet_layers=2, use_stochastic_duration_prediction=True), two, {}),
        "wav2vec2": (made("Wav2Vec2", conv_dim=(32, 32), conv_stride=(5, 4), conv_kernel=(10, 8),
                          num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
                          **_SMALL),
                     {"input_values": torch.randn(1, 4000)}, {}),
        "segformer": (made("Segformer", "ForSemanticSegmentation", hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1],
                           num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=32), image(64, "pixel_values"), {}),
        "sam_decoder": (lambda: _MaskDecoder(transformers), sam, {}),
        "clip_vision": (made("CLIPVision", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                             intermediate_size=128, image_size=64), image(64, "pixel_values"), {"pixel_values": BATCH}),
        "resnet18": seen("resnet18", 224),
        "mobilenet_v3": seen("mobilenet_v3_small"),
        "efficientnet": seen("efficientnet_b0"),
        "swin": seen("swin_t"),
        "deeplab": seen("deeplabv3_mobilenet_v3_large", weights_backbone=None),
        "raft": (torchvision.models.optical_flow.raft_small, frames, {}),
        "convnext": shown("convnext_atto"),
        "mobilevit": shown("mobilevit_xxs"),
        "regnet": shown("regnety_002"),
        "unet": (lambda: diffusers.UNet2DConditionModel(
            sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8),
            unet, {"sample": BATCH, "encoder_hidden_states": BATCH, "timestep": BATCH}),
        "vae_decoder": (lambda: diffusers.AutoencoderKL(
            block_out_channels=(16, 32), norm_num_groups=8, down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2).decoder, {"x": torch.randn(1, 4, 8, 8)}, {}),
        "lstm": (lambda: nn.LSTM(16, 32, batch_first=True), {"x": torch.randn(1, 12, 16)},
                 {"x": {0: "batch", 1: "steps"}}),
        "noise": (_noisy, {"x": torch.randn(1, 8)}, {}),
    }  # fmt: skip


_LEGACY = frozenset({"mlp", "cnn", "bert", "distilbert", "vit", "resnet18", "lstm", "noise", "vits"})
"""Those that torch's older exporter writes too."""


def _torch_files() -> dict[str, Callable[[Path], None]]:
    plans = _plans()
    files = {f"{name}_dynamo": _torch(plan, new=True) for name, plan in plans.items() if name != "vits"}
    files |= {f"{name}_legacy": _torch(plans[name], new=False) for name in plans if name in _LEGACY}
    bert, resnet, whisper = files["bert_legacy"], files["resnet18_legacy"], files["whisper_dynamo"]
    return files | {
        "bert_int8": _after(bert, _int8),
        "whisper_int8": _after(whisper, _int8),
        "resnet18_qdq": _after(resnet, _qdq),
        "resnet18_half": _after(resnet, _half),
        "bert_half": _after(bert, _half),
    }


def _after(write: Callable[[Path], None], change: Callable[[Path, Path], None]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        before = path.with_suffix(".before")
        write(before)
        change(before, path)
        before.unlink()

    return changed


def _int8(before: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(before, path, weight_type=QuantType.QInt8)


def _qdq(before: Path, path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.left = iter([{"x": rng.standard_normal((1, 3, 224, 224)).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(before, path, Reader(), quant_format=QuantFormat.QDQ)


def _half(before: Path, path: Path) -> None:
    import onnx
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(before), keep_io_types=False), path)


def _Cached(model: Any) -> Any:  # noqa: N802 - a class that needs torch
    import torch
    from transformers import DynamicCache

    class Cached(torch.nn.Module):  # type: ignore[misc]
        """A decoder with its cache as inputs and outputs, as optimum exports it."""

        config = model.config

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, **past: Any) -> Any:
            layers = range(len(past) // 2)
            cache = DynamicCache([(past[f"past_key_{at}"], past[f"past_value_{at}"]) for at in layers])
            outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
            now = [part for at in layers for part in (cache.layers[at].keys, cache.layers[at].values)]
            return outputs[0], *now

    return Cached()


def _MaskDecoder(transformers: Any) -> Any:  # noqa: N802
    import torch

    settings = transformers.SamConfig(
        mask_decoder_config={"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32},
        prompt_encoder_config={"hidden_size": 32, "image_size": 128},
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 128,
                       "output_channels": 32},
    )  # fmt: skip
    settings._attn_implementation = "eager"
    decoder = transformers.SamModel(settings).mask_decoder

    class MaskDecoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(self, **given: Any) -> Any:
            return self.decoder(**given, multimask_output=True)[:2]

    return MaskDecoder()


def _noisy() -> Any:
    import torch

    class Noisy(torch.nn.Module):  # type: ignore[misc]
        """As a vocoder: one output has noise in it, the other has none."""

        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x), torch.tanh(x)

    return Noisy()


def _learnt_files() -> dict[str, Callable[[Path], None]]:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn import ensemble, feature_extraction, linear_model, pipeline, preprocessing

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 8)).astype(np.float32)
    kinds = (rows[:, 0] > rows[:, 1]).astype(np.int64)
    scaled = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()).fit(rows, kinds)
    forest = ensemble.RandomForestClassifier(10, max_depth=5).fit(rows, kinds)
    gradient = ensemble.GradientBoostingRegressor(n_estimators=10).fit(rows, rows[:, 2])
    boosted = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1).fit(rows, rows[:, 2])
    texts = pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression())
    texts.fit(["good day", "bad day", "good", "bad"], [1, 0, 1, 0])

    def onnx_of(model: Any, *, maps: bool = False) -> Callable[[Path], None]:
        options = {id(model): {"zipmap": maps}} if hasattr(model, "classes_") else None
        return lambda path: (path.write_bytes(to_onnx(model, rows[:1], options=options).SerializeToString()), None)[1]

    return {
        "sk_scaled": onnx_of(scaled),
        "sk_scaled_zipmap": onnx_of(scaled, maps=True),
        "sk_forest": onnx_of(forest),
        "sk_gradient": onnx_of(gradient),
        "sk_text": lambda path: (path.write_bytes(
            to_onnx(texts, initial_types=[("text", StringTensorType([None, 1]))]).SerializeToString()), None)[1],
        "lightgbm": lambda path: (path.write_bytes(
            convert_lightgbm(boosted, initial_types=[("x", FloatTensorType([None, 8]))]).SerializeToString()), None)[1],
    }  # fmt: skip


def make(directory: Path) -> int:
    """Write what is not there; 1 if some of it failed."""
    directory.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, write in {**_torch_files(), **_learnt_files()}.items():
        path = directory / f"{name}.onnx"
        if not path.exists():
            try:
                write(path)
            except Exception as error:  # noqa: BLE001 - each exporter has its own
                path.unlink(missing_ok=True)
                failed = 1
                print(name, "is not exported:", " ".join(str(error).split())[:160], flush=True)
    return failed


# -- checking ----------------------------------------------------------------------------------------------------------


def examine(path: Path) -> dict[str, Any]:
    """Return what came of a file: compiled at once, with the line that was suggested, or refused."""
    output, flags, began = path.with_suffix(".tunery"), list[str](), time.monotonic()
    said = _compiled(path, output, flags)
    if (suggested := _SUGGESTED.search(said.get("error", ""))) is not None:
        flags = shlex.split(suggested[1])
        said = _compiled(path, output, flags)
    row = {"file": path.stem, "flags": shlex.join(flags), "error": said.get("error", ""), "s": time.monotonic() - began}
    if row["error"]:
        return row | {"blamed": bool(_BLAMED.search(row["error"]))}
    sizes = output.stat().st_size / path.stat().st_size
    more = {name: said.get(name) for name in ("headline", "verdict", "elsewhere")}
    blamed = any(map(_BLAMED.search, said["elsewhere"].values()))
    return row | more | {"size": sizes, "deviation": deviation(path, output), "blamed": blamed}


def _compiled(path: Path, output: Path, flags: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tunery", "compile", str(path), "-o", str(output), *flags, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    return said


def deviation(path: Path, compiled: Path) -> float:
    """Return the largest deviation from ONNX Runtime, unoptimised, on several sets, relative to each output's range.

    Outputs that differ between two runs of ONNX Runtime itself are random, and left out.
    """
    import onnxruntime

    import tunery

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ours, rng, worst = tunery.InferenceSession(str(compiled)), np.random.default_rng(1), 0.0
    for number in range(SETS):
        feed, expected = _accepted(theirs, ours.get_inputs(), rng, number)
        again, found = theirs.run(None, feed), ours.run(None, feed)
        for a, b, c in zip(expected, again, found, strict=True):
            if isinstance(a, np.ndarray) and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                apart = np.abs(np.asarray(a, np.float64) - np.asarray(c, np.float64)).max(initial=0.0)
                worst = max(worst, float(apart / max(np.abs(a).max(initial=0.0), 1e-6)))
    return worst


def _accepted(session: Any, inputs: Any, rng: np.random.Generator, number: int) -> tuple[dict[str, Any], list[Any]]:
    """Return a set of inputs whose ids are no larger than the model's tables, and its outputs."""
    for most in (500, 38, 2):
        feed = {value.name: _drawn(rng, value, number, most) for value in inputs}
        try:
            return feed, session.run(None, feed)
        except Exception:
            if most == 2:
                raise
    raise AssertionError


def _drawn(rng: np.random.Generator, value: Any, number: int, most: int) -> np.ndarray:
    """Return an input as a user has it: token ids, masks that end somewhere, small categories, or numbers."""
    shape = tuple(value.shape)
    if "float" in value.type:
        return rng.standard_normal(shape).astype(np.float16 if "16" in value.type else np.float32)
    if "mask" in value.name:
        mask = np.ones(shape, np.int64)
        mask[..., shape[-1] - number :] = 0
        return mask
    return rng.integers(0, 2 if "type" in value.name else most, shape, dtype=np.int64)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rows as a table, and the sums that count."""
    lines = [
        "| export | what came of it | of its time by tunery | times ONNX Runtime | deviation | size |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        if row["error"]:
            lines.append(f"| {name} | refused: {row['error']} | | | | |")
            continue
        verdict = row["verdict"] or {}
        speed = verdict.get("delivered")
        lines.append(
            f"| {name} | compiled{' with ' + row['flags'] if row['flags'] else ''} "
            f"| {1 - verdict.get('onnxruntime_share', 0):.0%} | {format(speed['ratio'], '.2f') if speed else '-'} "
            f"| {row['deviation']:.1e} | {row['size']:.2f} |"
        )
    done = [row for row in rows.values() if not row["error"]]
    right = sum(row["deviation"] <= TOLERANCE[_kind(row)] for row in done)
    lines.append(
        f"\n{len(done)} of {len(rows)} compiled, {sum(bool(row['flags']) for row in done)} of them with the line that "
        f"was suggested; {right} right on {SETS} sets; {len(rows) - len(done)} refused, "
        f"{sum(row.get('blamed', False) for row in rows.values())} blamed"
    )
    return "\n".join(lines)


def _kind(row: Mapping[str, Any]) -> str:
    """Return how exactly a network is computed: to a step of its integers, to its halves, or to single precision."""
    name: str = row["file"]
    return name.rpartition("_")[2] if name.endswith(("_half", "_int8", "_qdq")) else "single"


def main() -> int:
    """Make the exports, or examine those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--make", action="store_true", help="write the ONNX files, and no more")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose name holds this")
    parser.add_argument("--json", type=Path, default=Path("out/exports.jsonl"))
    given = parser.parse_args()
    if given.make:
        return make(given.directory)
    from rows import Kept

    given.json.parent.mkdir(parents=True, exist_ok=True)
    kept = Kept(given.json, __file__)
    rows = {row["file"]: row for row in kept.read()}
    for path in sorted(given.directory.glob("*.onnx")):
        if given.only in path.stem and path.stem not in rows:
            rows[path.stem] = examine(path)
            kept.add(rows[path.stem])
            print(path.stem, rows[path.stem]["error"] or rows[path.stem]["deviation"], flush=True)
    print(table(rows))
    return int(any(not row["error"] and not row["deviation"] <= TOLERANCE[_kind(row)] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
