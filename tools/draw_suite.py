"""Draw the README's picture of the suite from benchmarks/experiments/suite.md: `python tools/draw_suite.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)(?:, even)? \|", re.MULTILINE)
NOT_SOURCES = {"resnet18", "mobilenet_v2", "efficientnet_b0", "bert-small"}  # their winners do not ship
TITLE = "times as fast as ONNX Runtime, 2 threads, 30 s of tuning per network"
LEFT, WIDTH, HEIGHT, SCALE = 190, 720, 22, 190.0


def draw(rows: list[tuple[str, float, float]]) -> str:
    """Return an SVG with one bar for each (network, ONNX Runtime's latency over tunery's, tunery's latency in ms)."""
    bottom = 44 + HEIGHT * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 52}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{bottom + 52}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{TITLE}</text>',
    ]
    for index, (network, times, latency_ms) in enumerate(rows):
        y = 36 + HEIGHT * index
        color = "#1f6fb2" if network in NOT_SOURCES else "#a9c9e6"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 13}" font-size="12" text-anchor="end">{network}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{times * SCALE:.0f}" height="{HEIGHT - 6}" fill="{color}"/>',
            f'<text x="{LEFT + times * SCALE + 6:.0f}" y="{y + 13}" font-size="12">'
            f"{times:.2f} ({latency_ms:g} ms)</text>",
        ]
    at = LEFT + SCALE
    lines += [
        f'<line x1="{at:.0f}" y1="30" x2="{at:.0f}" y2="{bottom}" stroke="#c03030" stroke-dasharray="4 3"/>',
        f'<text x="{at:.0f}" y="{bottom + 14}" font-size="12" text-anchor="middle" fill="#c03030">ONNX Runtime</text>',
        f'<rect x="10" y="{bottom + 28}" width="12" height="12" fill="#1f6fb2"/>',
        f'<text x="28" y="{bottom + 38}" font-size="12">nothing of the network ships with tunery</text>',
        f'<rect x="330" y="{bottom + 28}" width="12" height="12" fill="#a9c9e6"/>',
        f'<text x="348" y="{bottom + 38}" font-size="12">the network is a source of the shipped winners</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the table and write the picture."""
    page = (ROOT / "benchmarks" / "experiments" / "suite.md").read_text()
    table = page.partition("| network | tunery, 2 threads |")[2].partition("\n\n")[0]
    rows = [(network, float(times), float(ours)) for network, ours, _, times in ROW.findall(table)]
    (ROOT / "docs" / "images" / "suite.svg").write_text(draw(sorted(rows, key=lambda row: -row[1])))


if __name__ == "__main__":
    main()
