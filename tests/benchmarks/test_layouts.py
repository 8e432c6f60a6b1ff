"""Both layouts of a network: each in a child with the right thing switched off."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ablation
import layouts
import pytest

from tunery._errors import WorkError
from tunery.domain.request import BenchReport, Latency, Request


def test_each_layout_is_made_in_a_child_of_its_own_and_rows_stay_where_a_network_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms: list[str] = []

    def watch(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        if "odd" in command:
            raise WorkError("it cannot be lowered")
        arms.append(environment[ablation.SWITCHED_OFF])
        Path(command[-1], "network.tunery").write_text(arms[-1])
        Path(command[-1], "untuned").write_text("3")

    def bench(
        request: Request, against: Sequence[str], seconds: float, *, compiled: Path, others: Mapping[str, Path]
    ) -> BenchReport:
        assert compiled.read_text() == ablation.ALL_ON
        assert {label: file.read_text() for label, file in others.items()} == {
            layouts.GENERIC: ablation.VARIANTS, layouts.FIRST: ablation.STOCK_LAYOUT,
        }  # fmt: skip
        times = {"tunery": 1e-3, layouts.GENERIC: 1.6e-3, layouts.FIRST: 2e-3, against[0]: 1.5e-3}
        return BenchReport(request.model, 2, {name: Latency(s, s, s, 9) for name, s in times.items()}, 0.0)

    monkeypatch.setattr(layouts, "watch", watch)
    monkeypatch.setattr(layouts, "bench", bench)
    file = tmp_path / "rows.jsonl"
    assert layouts.run(["a", "odd"], "10s", file) == 1
    assert layouts.run(["a"], "10s", file) == 0
    assert arms == [ablation.ALL_ON, ablation.VARIANTS, ablation.STOCK_LAYOUT]
    assert [json.loads(line)["network"] for line in file.read_text().splitlines()] == ["a"]
    assert "geometric mean 2.00, of the layout alone 1.25" in capsys.readouterr().out
