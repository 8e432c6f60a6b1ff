"""A sample of ONNX's own operator tests: what the importer gets from our rules is right; all are `make conformance`."""

from pathlib import Path

import numpy as np
import pytest
from conformance import (
    LIMITS,
    REFUSED,
    RIGHT,
    WRONG,
    Case,
    Verdict,
    collected,
    foreign_lines,
    judge,
    limits_of,
    table,
    with_constants,
)
from onnx import TensorProto, helper

SAMPLE = (
    "test_attention_4d",
    "test_center_crop_pad_crop",
    "test_cumsum_2d_axis_0",
    "test_gather_elements_negative_indices",
    "test_gru_defaults",
    "test_gru_seq_length",
    "test_gru_with_initial_bias",
    "test_identity",
    "test_onehot_negative_indices",
    "test_isinf",
    "test_isinf_negative",
    "test_layer_normalization_3d_axis1_epsilon",
    "test_lstm_bidirectional",
    "test_lstm_reverse",
    "test_lstm_with_initial_bias",
    "test_mean_example",
    "test_reduce_sum_keepdims_random",
    "test_rnn_seq_length",
    "test_rotary_embedding",
    "test_simple_rnn_defaults",
    "test_sce_NCd1_mean_weight_negative_ii_log_prob",
    "test_sum_example",
    "test_tensorscatter_circular",
    "test_tile",
)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in collected(SAMPLE)}


@pytest.mark.tvm
@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_is_right(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    verdict = judge(cases[name], tmp_path)
    assert (verdict.result, verdict.why, verdict.native) == (RIGHT, "", True)


REFUSALS = (
    "test_string_concat",
    "test_reduce_sum_empty_set",
    "test_causal_conv_with_state_kernel_size_one_expanded",
)


@pytest.mark.tvm
def test_a_refusal_names_a_limit(tmp_path: Path) -> None:
    refused = [judge(case, tmp_path) for case in collected(REFUSALS)]
    assert {one.result for one in refused} == {REFUSED}
    assert "" not in limits_of(refused)
    documented = " ".join((Path(__file__).parents[2] / "docs/limits.md").read_text().split())
    assert all(limit in documented for limit in LIMITS)


def _case(given: str, value: float) -> Case:
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
         helper.make_tensor_value_info("axes", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    inputs = [np.ones((2, 3), np.float32), np.array([1])]
    return Case(given, "ReduceSum", model.SerializeToString(), inputs, [np.full(2, value, np.float32)])


@pytest.mark.tvm
def test_a_wrong_value_is_told_from_a_right_one(tmp_path: Path) -> None:
    assert judge(_case("right", 3.0), tmp_path).result == RIGHT
    assert judge(_case("wrong", 3.5), tmp_path).result == WRONG


def test_parameters_become_constants() -> None:
    constant = with_constants(_case("sum", 3.0))
    assert constant is not None
    assert len(constant.inputs) == 1
    assert with_constants(constant) is None


def test_the_table_counts_by_operator() -> None:
    verdicts = [
        Verdict("a", "Add", RIGHT, native=True), Verdict("b", "Add", REFUSED, "no"), Verdict("c", "Mul", WRONG, "1"),
        Verdict("d", "If", RIGHT, "control flow"), Verdict("e", "If", RIGHT, "control flow"),
    ]  # fmt: skip
    lines = table(verdicts).splitlines()
    assert "| Add | 1 | 1 |  |  | 100% |" in lines
    assert lines[-1] == "| **all** | 3 | 1 | 1 |  | 50% |"
    assert foreign_lines(verdicts) == ["   2 control flow: If"]
