"""What users meet who export a network today: is it compiled, right on five sets of inputs, or refused with a way out?

    python benchmarks/exports.py --make DIRECTORY     in an environment with torch, transformers, skl2onnx, onnxmltools
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

SETS, TOLERANCE = 5, 1e-3
_SUGGESTED = re.compile(r"(?:for example with|write) ((?:--shape \S+ ?)+)")
_SMALL: dict[str, Any] = {
    "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
_VISION: dict[str, Any] = {name: value for name, value in _SMALL.items() if name != "vocab_size"}


# -- making, in an environment of its own ------------------------------------------------------------------------------


def _torch(
    module: Any, inputs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]], *, new: bool
) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import torch

        how: dict[str, Any] = {"opset_version": 17, "dynamic_axes": dict(dynamic)}
        if new:
            shapes = [dict.fromkeys(dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs]
            how = {"dynamic_shapes": (tuple(shapes),), "verbose": False, "external_data": False}
        named = _named(module, list(inputs))
        torch.onnx.export(named, tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=new, **how)

    return write


def _named(model: Any, names: list[str]) -> Any:
    """Return a module that takes a model's inputs in this order, and gives its first output."""
    import torch

    class Named(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            outputs = self.model(**dict(zip(names, values, strict=True)))
            return outputs[0] if isinstance(outputs, tuple) and len(outputs) > 1 and names != ["x"] else outputs

    return Named().eval()


def _torch_files() -> dict[str, Callable[[Path], None]]:
    import torch
    import transformers
    from torch import nn

    torch.manual_seed(0)

    def made(name: str, part: str = "", **config: Any) -> Any:
        kind = getattr(transformers, f"{name}Config")(attn_implementation="eager", return_dict=False, **config)
        return getattr(transformers, f"{name}{part}Model")(kind).eval()

    words = torch.ones(1, 16, dtype=torch.int64)
    tokens = {"input_ids": words, "attention_mask": words, "token_type_ids": torch.zeros_like(words)}
    two = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    rows: dict[int, str] = {0: "batch", 1: "sequence"}
    image = {"pixel_values": torch.randn(1, 3, 224, 224)}
    mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).eval()
    cnn = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plans: dict[str, tuple[Any, Mapping[str, Any], Mapping[str, Mapping[int, str]]]] = {
        "mlp": (mlp, {"input": torch.randn(2, 32)}, {"input": {0: "batch"}}),
        "cnn": (cnn.eval(), {"input": torch.randn(2, 3, 64, 64)}, {"input": {0: "batch", 2: "height", 3: "width"}}),
        "bert": (made("Bert", **_SMALL), tokens, dict.fromkeys(tokens, rows)),
        "distilbert": (made("DistilBert", vocab_size=500, dim=64, n_layers=2, n_heads=4, hidden_dim=128), two,
                       dict.fromkeys(two, rows)),
        "vit": (made("ViT", **_VISION), image, {"pixel_values": {0: "batch"}}),
        "gpt2": (made("GPT2", vocab_size=500, n_embd=64, n_layer=2, n_head=4, use_cache=False),
                 {"input_ids": words}, {"input_ids": rows}),
    }  # fmt: skip
    files = {}
    for name, (module, inputs, dynamic) in plans.items():
        for new in (True, False):
            files[f"{name}_{'dynamo' if new else 'legacy'}"] = _torch(module, inputs, dynamic, new=new)
    lstm = nn.LSTM(16, 32, batch_first=True)
    steps = {"input": torch.randn(1, 12, 16)}
    files["lstm_legacy"] = _torch(lstm, steps, {"input": {0: "batch", 1: "steps"}}, new=False)
    noise = _torch(_noisy(), {"x": torch.randn(1, 8)}, {}, new=False)
    return {**files, "noise_legacy": noise}


def _noisy() -> Any:
    import torch

    class Noisy(torch.nn.Module):  # type: ignore[misc]
        """As a vocoder: one output has noise in it, the other has none."""

        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x), torch.tanh(x)

    return Noisy().eval()


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
    output, flags = path.with_suffix(".tunery"), list[str]()
    said = _compiled(path, output, flags)
    if (suggested := _SUGGESTED.search(said.get("error", ""))) is not None:
        flags = shlex.split(suggested[1])
        said = _compiled(path, output, flags)
    row = {
        "file": path.stem,
        "flags": shlex.join(flags),
        "error": said.get("error", ""),
        "headline": said.get("headline"),
    }
    return row | ({} if row["error"] else {"deviation": deviation(path, output)})


def _compiled(path: Path, output: Path, flags: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tunery", "compile", str(path), "-o", str(output), *flags, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"exit code {done.returncode}: {done.stderr[-200:]}"}
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
        feed = {value.name: _drawn(rng, value, number) for value in ours.get_inputs()}
        expected, again, found = theirs.run(None, feed), theirs.run(None, feed), ours.run(None, feed)
        for a, b, c in zip(expected, again, found, strict=True):
            if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                worst = max(
                    worst, float(np.abs(a.astype(np.float64) - c).max(initial=0.0) / max(np.abs(a).max(), 1e-6))
                )
    return worst


def _drawn(rng: np.random.Generator, value: Any, number: int) -> np.ndarray:
    """Return an input as a user has it: token ids, masks that end somewhere, small categories, or numbers."""
    shape = tuple(value.shape)
    if "float" in value.type:
        return rng.standard_normal(shape).astype(np.float16 if "16" in value.type else np.float32)
    if "mask" in value.name:
        mask = np.ones(shape, np.int64)
        mask[..., shape[-1] - number :] = 0
        return mask
    return rng.integers(0, 2 if "type" in value.name else 500, shape, dtype=np.int64)


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rows as a table, and the sums that count."""
    lines = ["| export | what came of it | deviation |", "| --- | --- | --- |"]
    for name, row in rows.items():
        how = row["error"] or f"compiled{' with ' + row['flags'] if row['flags'] else ''}; {row['headline']}"
        lines.append(f"| {name} | {how} | {'' if row['error'] else format(row['deviation'], '.1e')} |")
    done = [row for row in rows.values() if not row["error"]]
    right = sum(row["deviation"] <= TOLERANCE for row in done)
    helped = sum(bool(row["flags"]) for row in done)
    lines.append(
        f"\n{len(done)} of {len(rows)} compiled, {helped} of them with the line that was suggested; "
        f"{right} right on {SETS} sets; {len(rows) - len(done)} refused"
    )
    return "\n".join(lines)


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
    return int(any(not row["error"] and not row["deviation"] <= TOLERANCE for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
