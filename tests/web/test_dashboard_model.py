"""From a model that is dropped on the dashboard to a file that computes what ONNX Runtime does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from dashboard_site import Served, chromium, drop, fetch_file, log_in, matmul_model, served

import tunery

pytestmark = [pytest.mark.browser, pytest.mark.tvm, pytest.mark.slow]
NAME = "<img onerror>"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as one:
        yield one


def test_a_model_is_dropped_tuned_compiled_downloaded_and_run(site: Served, tmp_path: Path) -> None:
    content = matmul_model(NAME)
    with chromium() as browser:
        page: Any = browser.new_page()
        log_in(page, site, site.token("ann"), "new")
        drop(page, f"{NAME}.onnx", content)
        page.get_by_text("operators of").wait_for()
        page.get_by_label("Budget").fill("4trials")
        page.get_by_role("button", name="Start tuning").click()
        path = fetch_file(page, tmp_path)
        assert page.locator("img").count() == 0
    data = np.random.default_rng(1).standard_normal((16, 32), dtype=np.float32)
    (theirs,) = onnxruntime.InferenceSession(content).run(None, {"x": data})
    (ours,) = tunery.load_compiled(path)(data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert onnx.load_model_from_string(content).graph.name == NAME
