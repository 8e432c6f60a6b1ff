"""Sums of products from register tiles: right for every tile and edge, without a touch beyond any array."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from guarded import dies, guarded
from metaschedule_models import write_network
from onnx import helper
from scipy.special import erf, expit

pytest.importorskip("tvm")

from tvm import te

from tunery._errors import DialectError
from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Dialect, Observation
from tunery.dialects.metaschedule._tvm import tvm, tvm_ffi
from tunery.dialects.metaschedule.loading.preparing import TILES, WINOGRAD, from_tiles, transformed, transformed_shape
from tunery.dialects.metaschedule.tiles import kernels
from tunery.dialects.metaschedule.tiles.designs import registers_of
from tunery.dialects.metaschedule.tiles.kernels import Tile, fits, function_of, module_of
from tunery.dialects.metaschedule.tiles.products import product_of
from tunery.dialects.metaschedule.variants.program import identify, tvm_target, variants
from tunery.dialects.metaschedule.variants.variant import write_body
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.domain import Candidate, Network, Outcome, Target, Task
from tunery.measuring.references import Unmeasured

pytestmark = pytest.mark.tvm

Run = Callable[..., object]
_FEW_TAPS = ((2, 40), (3, 12))


@pytest.fixture(scope="module")
def lanes(target: Target) -> int:
    return lanes_of(tvm_target(target))


def built(tiles: dict[str, Tile], target: Target) -> dict[str, Run]:
    """Return functions of data, columns' values and result, each a call of one tile's."""
    functions = {}
    for name, tile in tiles.items():
        called, text = function_of(tile)
        buffers = [tvm.tirx.decl_buffer((1 << 16,), "float32", data_alignment=4) for _ in range(3)]
        zero = tvm.tirx.IntImm("int64", 0)
        arguments = [tvm.tirx.address_of(buffer[(zero,)]) for buffer in buffers]
        call = tvm.tirx.call_extern("int32", called, *arguments, tvm.tirx.IntImm("int32", tile.rows // 2))
        body = tvm.tirx.AttrStmt(zero, "pragma_import_llvm", module_of([text], tile.lanes), tvm.tirx.Evaluate(call))
        block = tvm.s_tir.SBlock([], [], [], "root", body, None, [], [], {})
        function = tvm.tirx.PrimFunc(buffers, tvm.s_tir.SBlockRealize([], True, block))
        functions[name] = function.with_attrs({"global_symbol": name, "tirx.noalias": True})
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        library = tvm.tirx.build(tvm.IRModule(functions), target=tvm_target(target))
    return {name: library[name] for name in functions}


def some_tiles(lanes: int, registers: int) -> dict[str, Tile]:
    """Return every number of rows with one vector and with the most that fit, ends of vectors in turn, other forms."""
    found = {}
    ends = (lanes, 1, lanes - 1, lanes // 2)
    for rows in range(1, 17):
        widest = max(vectors for vectors in range(1, 9) if fits(rows, vectors, registers))
        for vectors in {1, widest}:
            last, depth = ends[len(found) % 4], (1, 4, 9, 19)[len(found) // 4 % 4]
            columns = (vectors - 1) * lanes + last
            packed = len(found) % 3 > 0
            step, vector = (lanes, depth * lanes) if packed else (columns, lanes)
            found[f"t{rows}x{vectors}"] = Tile(rows, vectors, lanes, last, depth + 3, columns + 2, step, vector, depth)
    taps = 6 * 5
    found["taps"] = Tile(4, 2, lanes, 3, 12, 2 * lanes, lanes, taps * lanes, 5, _FEW_TAPS)
    found["wrapped"] = Tile(6, 1, lanes, lanes, 12, lanes, lanes, taps * lanes, 5, _FEW_TAPS, (5, 30))
    return found


def offsets(tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """Return where in the data each row of a tile begins, and where each step of the sum is from there."""
    if tile.wrap:
        width, gap = tile.wrap
        first = tile.rows // 2
        rows = [i * tile.row + (first + i) // width * gap for i in range(tile.rows)]
    else:
        rows = [i * tile.row for i in range(tile.rows)]
    (many, row), (few, column) = tile.taps or ((1, 0), (1, 0))
    steps = [r * row + c * column + k for r in range(many) for c in range(few) for k in range(tile.depth)]
    return np.array(rows), np.array(steps)


def arrays(tile: Tile, *, begins: bool = False, shorter: str = "") -> tuple[list[np.ndarray], np.ndarray]:
    """Return guarded arrays that are just as large as a tile needs them, whole numbers, and what is to come out.

    One of them is `shorter` than that by a number if it is named.
    """
    rng = np.random.default_rng(tile.rows * 10 + tile.vectors)
    rows, steps = offsets(tile)
    columns = (tile.vectors - 1) * tile.lanes + tile.last
    data = rng.integers(-9, 9, rows.max() + steps.max() + 1).astype(np.float32)
    values = rng.integers(-9, 9, (len(steps), tile.vectors * tile.lanes)).astype(np.float32)
    packed = tile.step == tile.lanes
    lying = values.reshape(len(steps), -1, tile.lanes).transpose(1, 0, 2) if packed else values[:, :columns]
    result = np.full((tile.rows - 1) * tile.result + columns, 77, np.float32)
    expected = result.copy()
    for i, start in enumerate(rows):
        expected[i * tile.result :][:columns] = (data[start + steps].astype(np.float64) @ values)[:columns]
    whole = {"data": data, "values": lying.reshape(-1), "result": result}
    cut = {name: array[:-1] if name == shorter else array for name, array in whole.items()}
    return [guarded(array, begins=begins) for array in cut.values()], expected


def call(run: Run, given: list[np.ndarray]) -> None:
    run(*(tvm_ffi.from_dlpack(array) for array in given))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_tile_is_right_and_touches_nothing_beyond_its_arrays(target: Target, lanes: int) -> None:
    tiles = some_tiles(lanes, registers_of(tvm_target(target)))
    runs = built(tiles, target)
    for name, tile in tiles.items():
        for begins in (False, True):
            given, expected = arrays(tile, begins=begins)
            call(runs[name], given)
            np.testing.assert_array_equal(given[2], expected, err_msg=name)
    whole = [name for name, tile in tiles.items() if tile.last == lanes]
    for name in (*whole[:2], whole[-1]):  # an array that is one number short is noticed
        for shorter in ("data", "values", "result"):
            given, _ = arrays(tiles[name], shorter=shorter)
            assert dies(lambda name=name, given=given: call(runs[name], given)), (name, shorter)


# -- programs ----------------------------------------------------------------------------------------------------------

Node = tuple[str, list[str], dict[str, Any]]
_CEILED: list[Node] = [("Mul", ["", "share"], {}), ("Ceil", [""], {})]
_FUNCTIONS: dict[str, tuple[list[Node], Callable[[np.ndarray], np.ndarray]]] = {
    "tanh": ([("Tanh", ["y0"], {})], np.tanh),
    "erf": ([("Erf", ["y0"], {})], erf),
    "swish": ([("Sigmoid", ["y0"], {}), ("Mul", ["y0", "y1"], {})], lambda x: x * expit(x)),
    "root": ([("Neg", ["y0"], {}), ("Exp", ["y1"], {}), ("Sqrt", ["y2"], {})], lambda x: np.sqrt(np.exp(-x))),
}
# By name: the shape of the input, those of constants (a name that begins with `x` is an input), and the operators.
CASES: dict[str, tuple[dict[str, tuple[int, ...]], list[Node]]] = {
    "dense": ({"x": (49, 37), "w": (37, 100), "b": (100,)}, [("MatMul", ["x", "w"], {}), ("Add", ["", "b"], {})]),
    "one row": ({"x": (1, 64), "w": (64, 31)}, [("MatMul", ["x", "w"], {}), ("Relu", [""], {})]),
    "one column": ({"x": (23, 64), "w": (64, 1)}, [("MatMul", ["x", "w"], {})]),
    "few columns": ({"x": (23, 20), "w": (20, 3)}, [("MatMul", ["x", "w"], {})]),
    "one step": ({"x": (23, 1), "w": (1, 47)}, [("MatMul", ["x", "w"], {})]),
    "residual": (
        {"x": (2, 13, 40), "w": (40, 64), "x2": (2, 13, 64)},
        [("MatMul", ["x", "w"], {}), ("Add", ["", "x2"], {}), ("Relu", [""], {})],
    ),
    "larger": ({"x": (13, 40), "w": (40, 33), "x2": (13, 33)}, [("MatMul", ["x", "w"], {}), ("Max", ["", "x2"], {})]),
    "afterwards": (
        {"x": (13, 40), "w": (40, 33)},
        [("MatMul", ["x", "w"], {}), ("Mul", ["", "share"], {}), ("Ceil", [""], {})],
    ),
    "batched": ({"x": (2, 3, 19, 24), "x2": (2, 3, 24, 41)}, [("MatMul", ["x", "x2"], {})]),
    "pointwise": ({"x": (1, 24, 7, 7), "w": (40, 24, 1, 1)}, [("Conv", ["x", "w"], {}), ("Relu", [""], {})]),
    "taps": (
        {"x": (2, 20, 9, 11), "w": (36, 20, 3, 3), "b": (36,)},
        [("Conv", ["x", "w", "b"], {"pads": [1, 1, 1, 1]}), ("Clip", ["", "low", "high"], {})],
    ),
    "squares": (
        {"x": (1, 17, 30, 27), "w": (40, 17, 3, 3), "x2": (1, 40, 29, 27)},
        [("Conv", ["x", "w"], {"pads": [0, 2, 1, 0]}), ("Add", ["", "x2"], {}), ("Relu", [""], {})],
    ),
    "squares, afterwards": (
        {"x": (2, 16, 6, 13), "w": (18, 16, 3, 3)},
        [("Conv", ["x", "w"], {"pads": [1] * 4}), ("Softplus", [""], {})],
    ),
    "strided": (
        {"x": (1, 3, 23, 23), "w": (17, 3, 7, 7)},
        [("Conv", ["x", "w"], {"strides": [2, 2], "pads": [3] * 4})],
    ),
    "dilated": ({"x": (1, 16, 13, 13), "w": (32, 16, 3, 3)}, [("Conv", ["x", "w"], {"dilations": [2, 2]})]),
    "grouped": ({"x": (1, 24, 8, 8), "w": (40, 6, 3, 3)}, [("Conv", ["x", "w"], {"group": 4, "pads": [1] * 4})]),
    "one axis": ({"x": (1, 12, 50), "w": (20, 12, 5)}, [("Conv", ["x", "w"], {"pads": [2, 2]})]),
    "each channel": (
        {"x": (2, 20, 9, 11), "w": (20, 1, 3, 3), "b": (20,)},
        [("Conv", ["x", "w", "b"], {"group": 20, "pads": [1] * 4}), ("Clip", ["", "low", "high"], {})],
    ),
    "each channel, strided": (
        {"x": (1, 24, 15, 39), "w": (24, 1, 5, 5), "x2": (1, 24, 8, 20)},
        [("Conv", ["x", "w"], {"group": 24, "strides": [2, 2], "pads": [2] * 4}), ("Add", ["", "x2"], {})],
    ),
    "each channel, wide": (
        {"x": (1, 5, 12, 37), "w": (5, 1, 9, 17)},
        [("Conv", ["x", "w"], {"group": 5, "pads": [4, 8, 4, 8]})],
    ),
    "each channel, dilated": (
        {"x": (1, 40, 11, 13), "w": (40, 1, 3, 3)},
        [
            ("Conv", ["x", "w"], {"group": 40, "dilations": [2, 3], "pads": [2, 3, 2, 3]}),
            ("Mul", ["", "share"], {}),
            ("Ceil", [""], {}),
        ],
    ),
    "each channel, one axis": (
        {"x": (1, 18, 50), "w": (18, 1, 5)},
        [("Conv", ["x", "w"], {"group": 18, "pads": [4, 0]})],
    ),
    "each channel, no padding": ({"x": (1, 34, 7, 7), "w": (34, 1, 3, 2)}, [("Conv", ["x", "w"], {"group": 34})]),
}
_LEFT_TO_OTHERS = {"one column"}


def network_of(cases: list[str], directory: Path) -> Network:
    """Return a network of cases side by side; its constants are whole numbers."""
    rng = np.random.default_rng(8)
    nodes, inputs = [], {}
    constants: dict[str, np.ndarray] = {"low": np.array(-40.0), "high": np.array(60.0), "share": np.array(0.375)}
    for case in cases:
        shapes, operators = CASES[case]
        mark = case.replace(" ", "_")
        for name, shape in shapes.items():
            if name.startswith("x"):
                inputs[f"{mark}_{name}"] = shape
            else:
                constants[f"{mark}_{name}"] = rng.integers(-4, 5, shape).astype(np.float32)
        for number, (kind, names, attributes) in enumerate(operators):
            taken = [f"{mark}_{n}" if n in shapes else n or f"{mark}_{number - 1}" for n in names]
            nodes.append(helper.make_node(kind, taken, [f"{mark}_{number}"], **attributes))
    return write_network(directory, "cases", nodes, inputs, constants)


def inputs_of(network: Network) -> dict[str, np.ndarray]:
    """Return whole numbers: their sums are the same in every order."""
    rng = np.random.default_rng(9)
    return {spec.name: rng.integers(-5, 6, spec.shape).astype(np.float32) for spec in network.inputs}


def designs(task: Task, name: str = TILES) -> list[Candidate]:
    found = variants(task).found[name].tiles
    return [identify(task, write_body(name, numbers)) for numbers in found]


def ours(
    dialect: Dialect, network: Network, target: Target, path: Path, given: dict[str, np.ndarray], number: int,
    name: str = TILES,
) -> Any:  # fmt: skip
    """Return the outputs of a network in which all products are computed by their design of a number."""
    tasks = dialect.extract(network, target)
    chosen = {}
    for task in tasks:
        if name in variants(task).found:
            mine = designs(task, name)
            chosen[task.workload.key] = mine[number % len(mine)]
    assert len(chosen) >= len(network.outputs) - len(_LEFT_TO_OTHERS)
    dialect.compile(network, target, chosen, path)
    return load_compiled(path)(*given.values())


def theirs(network: Network, given: dict[str, np.ndarray]) -> Any:
    return onnxruntime.InferenceSession(network.path).run(None, given)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return network_of(list(CASES), tmp_path_factory.mktemp("tiles"))


@pytest.mark.parametrize(("number", "processor"), [(0, "native"), (3, "x86-64-v3")])
def test_products_are_right(number: int, processor: str, dialect: Dialect, network: Network, tmp_path: Path) -> None:
    target, given = dialect.resolve_target(processor, 2), inputs_of(network)
    given["taps_x"][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    given["residual_x"][0, 3, 5] = np.nan
    given["residual_x2"][1, 3, 5] = np.inf
    given["larger_x"][2, 2], given["larger_x2"][3, 3] = np.nan, np.nan
    for mine, wanted in zip(
        ours(dialect, network, target, tmp_path / "net", given, number), theirs(network, given), strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("processor", ["native", "x86-64-v3"])
def test_functions_are_computed_in_registers(processor: str, dialect: Dialect, tmp_path: Path) -> None:
    nodes, shapes, constants = [], {}, {"w": np.eye(19)}
    for name, (operators, _) in _FUNCTIONS.items():
        shapes[f"{name}_x"] = (30, 19)
        nodes.append(helper.make_node("MatMul", [f"{name}_x", "w"], [f"{name}_y0"]))
        for number, (kind, read, _) in enumerate(operators, 1):
            nodes.append(helper.make_node(kind, [f"{name}_{value}" for value in read], [f"{name}_y{number}"]))
    network = write_network(tmp_path, "functions", nodes, shapes, constants)
    target = dialect.resolve_target(processor, 2)
    given = {name: np.random.default_rng(4).standard_normal(shape) * 3 for name, shape in shapes.items()}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    for array in given.values():
        array[:, 1] = 0  # what is not finite makes all of its row NaN
        array[2, 3], array[5, 5], array[8, 8], array[9, 9], array[9, 10] = np.nan, np.inf, -60, -80, 80
        array[11], array[12, 4] = -0.0, 1e-30
    tasks = dialect.extract(network, target)
    programs = [variants(task).found[TILES].written(variants(task).found[TILES].tiles[0]) for task in tasks]
    assert len(programs) == len(_FUNCTIONS)
    assert not any("vectorized" in program.script() for program in programs), "something is left for after the tile"
    results = ours(dialect, network, target, tmp_path / "net", given, 0)
    for (name, (_, function)), mine in zip(_FUNCTIONS.items(), results, strict=True):
        with np.errstate(invalid="ignore"):
            wanted = function(given[f"{name}_x"].astype(np.float64) @ np.eye(19))
        np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-36, err_msg=name)


@pytest.mark.parametrize(("number", "processor"), [(0, "native"), (2, "x86-64-v3"), (1, "x86-64-v3")])
def test_winograds_squares_are_right(number: int, processor: str, dialect: Dialect, tmp_path: Path) -> None:
    network = network_of(["taps", "squares", "squares, afterwards"], tmp_path)
    given = inputs_of(network)
    mine = ours(dialect, network, dialect.resolve_target(processor, 2), tmp_path / "net", given, number, WINOGRAD)
    for one, wanted in zip(mine, theirs(network, given), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max() + 2e-3)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Have parallel loops run on their caller: a fork has no other threads."""
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(1, 1)
    yield
    configure(1, 0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("processor", ["native", "x86-64-v3"])
def test_programs_touch_nothing_beyond_their_arrays(processor: str, dialect: Dialect, tmp_path: Path) -> None:
    # Of what is left for after a tile TVM takes arrays to be aligned, which guarded ones are not.
    cases = [name for name, (_, [*_, last]) in CASES.items() if name.startswith("each channel") and last[0] != "Ceil"]
    cases += ["taps", "squares", "strided", "pointwise"]
    tasks = dialect.extract(network_of(cases, tmp_path), dialect.resolve_target(processor, 2))
    products = [task for task in tasks if TILES in variants(task).found]
    assert len(products) == len(cases)
    programs = {
        f"p{n}_{name}_{m}": (task, variant.transforms, variant.written(numbers)["main"])
        for n, task in enumerate(products)
        for name, variant in variants(task).found.items()
        if variant.written
        for m, numbers in enumerate([*variant.tiles, (1, 1, 3, 1), (3, 1, 1, 1)])
    }
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        functions = {name: one.with_attr("global_symbol", name) for name, (_, _, one) in programs.items()}
        library = tvm.tirx.build(tvm.IRModule(functions), target=tvm_target(products[0].target))
    for name, (task, transforms, _) in programs.items():
        rng = np.random.default_rng(1)
        shapes = [spec.shape for spec in task.workload.arguments]
        given = [rng.integers(-9, 9, shape).astype(np.float32) for shape in shapes]
        given = transformed(given, transforms)
        outcomes = []
        for begins in (False, True):
            arrays = [guarded(array, begins=begins) for array in given]
            call(library[name], arrays)
            outcomes.append(arrays[-1].copy())
        np.testing.assert_array_equal(*outcomes, err_msg=name)
        for at in (0, 1, -1):  # data, weights and result
            arrays = [guarded(a.reshape(-1)[:-1] if n == at % len(given) else a) for n, a in enumerate(given)]
            assert dies(lambda name=name, arrays=arrays: call(library[name], arrays)), (name, at)


def test_a_wrong_tile_is_noticed(
    dialect: Dialect, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = kernels._steps
    monkeypatch.setattr(kernels, "_steps", lambda *given, ahead: steps(*given[:5], given[5] - (not ahead), ahead=ahead))
    network = network_of(["dense"], tmp_path)
    given = inputs_of(network)
    [mine], [right] = ours(dialect, network, target, tmp_path / "net", given, 0), theirs(network, given)
    assert not np.array_equal(mine, right)


def test_a_product_without_rows_is_left_to_others(target: Target) -> None:
    sizes = (0, 3, 16), (4, 0, 16), (4, 3, 0)
    for rows, steps, columns in sizes:
        data, weights = te.placeholder((rows, steps), name="data"), te.placeholder((steps, columns), name="weights")
        k = te.reduce_axis((0, steps))
        made = te.compute((rows, columns), lambda i, j: te.sum(data[i, k] * weights[k, j], axis=k))  # noqa: B023
        module = tvm.IRModule({"main": te.create_prim_func([data, weights, made])})
        with pytest.raises(DialectError):
            product_of(module)


def test_numbers_that_no_tile_has_are_refused(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = max(dialect.extract(network_of(["dense"], tmp_path), target), key=lambda task: task.workload.flop)
    wrong = [[14, 3, 1, 1], [0, 2, 1, 1], [6, 2, 0, 1], [6, 2, 1], [6, 2, 1, 1.5], ["x"], [40, 40, 1, 1]]
    for numbers in wrong:
        with pytest.raises(DialectError):
            dialect.identify(task, write_body(TILES, numbers))


def test_they_are_looked_at_first_and_need_no_cost_model(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = max(dialect.extract(network_of(["dense"], tmp_path), target), key=lambda task: task.workload.flop)
    known = [candidate.key for candidate in designs(task)]
    suggested = dialect.suggest(task, 8, "", 0).candidates
    assert [candidate.key for candidate in suggested] == known[: len(suggested)]
    search = dialect.open(task, (), None, 0, warm_start=True)
    first = search.propose(2)
    assert [candidate.key for candidate in first] == known[:2]
    search.observe([Observation(candidate, Outcome.OK, 1e-3) for candidate in first])
    rest = [candidate.key for _ in range(8) for candidate in search.propose(8)]
    assert set(known[2:]) < set(rest)
    assert not set(known[:2]) & set(rest)


def test_tiles_that_leave_out_padding_pass_the_verification(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    task = max(dialect.extract(network_of(["each channel"], tmp_path), target), key=lambda task: task.workload.flop)
    assert task.workload.kind == "depthwise"
    reference = dialect.build(task, dialect.reference(task), tmp_path)
    verify = Unmeasured(dialect, open_device("cpu")).verify
    for candidate in designs(task)[:2]:
        verdict = verify(task, dialect.build(task, candidate, tmp_path), reference)
        assert verdict.deliverable, verdict.detail


def test_where_nothing_is_padded_nothing_is_copied(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    copies = {}
    for case in ("pointwise", "taps"):
        tasks = dialect.extract(network_of([case], tmp_path), target)
        [task] = [task for task in tasks if task.workload.kind == "conv2d"]
        copies[case] = len(product_of(variants(task).found[TILES].module).parts.before)
    assert copies == {"pointwise": 0, "taps": 1}


def test_packed_weights_are_found_again() -> None:
    rng = np.random.default_rng(4)
    for shape, batches, groups in (((37, 100), 1, 1), ((3, 3, 6, 40), 1, 4), ((2, 5, 24, 41), 10, 1)):
        weights = rng.random(shape, np.float32)
        name = f"{TILES}{batches * groups * -(-shape[-1] // groups // 16)}x{groups}x16"
        [packed] = transformed([weights], {0: name})
        assert packed.shape == transformed_shape(shape, name)
        np.testing.assert_array_equal(from_tiles(packed, shape, name), weights)


def test_rows_that_share_lines_of_a_cache_have_smaller_tiles(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = {}
    for depth in (1000, 1024):
        nodes, constants = [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": rng.random((depth, 256))}
        [task] = dialect.extract(write_network(tmp_path, str(depth), nodes, {"x": (196, depth)}, constants), target)
        rows[depth] = variants(task).found[TILES].tiles[0][0]
    assert rows[1024] <= min(rows[1000], 8)
