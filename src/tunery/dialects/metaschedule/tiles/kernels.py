"""Register tiles as LLVM IR: `rows` x `vectors` sums that stay in registers while products are added to them.

The sums are phi values, which LLVM keeps in registers as long as the target has enough: `fits` counts them. The text is
made of numbers and of a workload's own expression, never of text that a record holds.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_UNROLLED = 2
_AHEAD = 16  # steps of the sum by which the columns' values are prefetched
_LINE = 16  # floats of a cache line


@dataclass(frozen=True)
class Tile:
    """A tile of `rows` x `vectors` of `lanes` floats; of the last vector only `last` lanes are read and written.

    `row` is how far apart the rows of the data are, `result` those of the result; `step` and `vector` are the distances
    of the columns' values between two steps of the sum and between two vectors; `depth` is the number of steps that lie
    side by side. `taps` are a kernel's rows and columns, each with the distance from one to the next in the data.
    `wrap` are the pixels of an image's row and what the data skips at its end.
    """

    rows: int
    vectors: int
    lanes: int
    last: int
    row: int
    result: int
    step: int
    vector: int
    depth: int
    taps: tuple[tuple[int, int], tuple[int, int]] | None = None
    wrap: tuple[int, int] | None = None


class Text:
    """The lines of a tile's function, each value assigned once."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.lines: list[str] = []
        self.shared: dict[object, str] = {}
        self.wide = f"<{tile.lanes} x float>"
        self._count = 0

    def value(self, text: str) -> str:
        """Write an instruction and return the name of its result."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {text}")
        return f"%v{self._count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def later(self, kind: str) -> tuple[str, Callable[[str, str, str, str], None]]:
        """Reserve a phi value; return its name, and what completes it with two values and where they come from."""
        name, number = self.value(""), len(self.lines) - 1

        def complete(first: str, origin: str, then: str, loop: str) -> None:
            self.lines[number] = f"  {name} = phi {kind} [ {first}, %{origin} ], [ {then}, %{loop} ]"

        return name, complete

    def place(self, pointer: str, offset: int | str) -> str:
        """Return the address `offset` floats behind a pointer."""
        return pointer if offset in {0, "0"} else self.value(f"getelementptr float, ptr {pointer}, i64 {offset}")

    def load(self, pointer: str, vector: int, *, whole: bool = False, kind: str = "load") -> str:
        """Load one of the tile's vectors; lanes beyond the last column are 0 unless it is `whole`."""
        if whole or vector < self.tile.vectors - 1 or self.tile.last == self.tile.lanes:
            return self.value(f"{kind} {self.wide}, ptr {pointer}, align 4")
        name = f"@llvm.masked.load.v{self.tile.lanes}f32.p0"
        return self.value(f"call {self.wide} {name}(ptr {pointer}, i32 4, {self._mask()}, {self.wide} zeroinitializer)")

    def store(self, value: str, pointer: str, vector: int) -> None:
        """Store one of the tile's vectors, without lanes beyond the last column."""
        if vector < self.tile.vectors - 1 or self.tile.last == self.tile.lanes:
            self.do(f"store {self.wide} {value}, ptr {pointer}, align 4")
        else:
            name = f"@llvm.masked.store.v{self.tile.lanes}f32.p0"
            self.do(f"call void {name}({self.wide} {value}, ptr {pointer}, i32 4, {self._mask()})")

    def splat(self, value: str) -> str:
        """Return a vector with a float in all lanes."""
        first = self.value(f"insertelement {self.wide} undef, float {value}, i32 0")
        zeros = f"<{self.tile.lanes} x i32> zeroinitializer"
        return self.value(f"shufflevector {self.wide} {first}, {self.wide} undef, {zeros}")

    def _mask(self) -> str:
        bits = ", ".join(f"i1 {int(lane < self.tile.last)}" for lane in range(self.tile.lanes))
        return f"<{self.tile.lanes} x i1> <{bits}>"


Finish = Callable[[Text, str, int, int], str]
"""Writes what is computed of the sum in a row and a vector, and returns the name of the result."""
Sums = dict[tuple[int, int], str]


def fits(rows: int, vectors: int, registers: int) -> bool:
    """Return whether a tile's sums, a row of the columns' values and one of the data are in registers."""
    return rows * vectors + vectors + 1 <= registers


def module_of(functions: Sequence[str], lanes: int) -> str:
    """Return the text of a module of these functions."""
    wide, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    declarations = (
        f"declare {wide} @llvm.fmuladd.v{lanes}f32({wide}, {wide}, {wide})",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        f"declare {wide} @llvm.masked.load.v{lanes}f32.p0(ptr, i32, {mask}, {wide})",
        f"declare void @llvm.masked.store.v{lanes}f32.p0({wide}, ptr, i32, {mask})",
        *(f"declare {wide} @llvm.{name}.v{lanes}f32({wide})" for name in ("floor", "fabs", "sqrt")),
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    )
    return "\n".join([*declarations, *dict.fromkeys(functions)])


def function_of(tile: Tile, extra: int = 0, finish: Finish | None = None) -> tuple[str, str]:
    """Return name and text of a tile's function.

    Its arguments are the data, the columns' values, the result, in which column of an image its first pixel is, and
    `extra` arrays that `finish` reads.
    """
    text = Text(tile)
    cells = [(i, j) for i in range(tile.rows) for j in range(tile.vectors)]
    text.label("entry")
    data = [text.place("%a", offset) for offset in _row_offsets(text)]
    results = {(i, j): text.place("%c", i * tile.result + j * tile.lanes) for i, j in cells}
    for (_, j), result in results.items():
        if j * tile.lanes % _LINE == 0:
            text.do(f"call void @llvm.prefetch.p0(ptr {result}, i32 1, i32 3, i32 1)")
    sums = dict.fromkeys(cells, "zeroinitializer")
    sums = _over_taps(text, data, sums) if tile.taps else _over_steps(text, data, "0", "%b", sums, "entry")[0]
    for (i, j), total in sums.items():
        text.store(finish(text, total, i, j) if finish else total, results[i, j], j)
    return defined(text, "first", extra)


def defined(text: Text, number: str, extra: int) -> tuple[str, str]:
    """Return name and text of a function of data, columns' values, result, a number and `extra` arrays."""
    text.do("ret i32 0")
    lines = "\n".join(text.lines)
    arrays = "".join(f", ptr noalias %e{i}" for i in range(extra))
    head = f"(ptr noalias %a, ptr noalias %b, ptr noalias %c, i32 %{number}{arrays}) nounwind {{"
    name = f"tunery_tile_{hashlib.sha256((head + lines).encode()).hexdigest()[:16]}"
    return name, f"define linkonce_odr hidden i32 @{name}{head}\n{lines}\n}}"


def _row_offsets(text: Text) -> list[int | str]:
    """Return where each row of the data begins: rows are pixels, and behind an image's last column is a gap."""
    tile = text.tile
    if tile.wrap is None:
        return [i * tile.row for i in range(tile.rows)]
    width, gap = tile.wrap
    offsets: list[int | str] = [0]
    column, offset = text.value("zext i32 %first to i64"), "0"
    for _ in range(1, tile.rows):
        following = text.value(f"add i64 {column}, 1")
        ends = text.value(f"icmp eq i64 {following}, {width}")
        column = text.value(f"select i1 {ends}, i64 0, i64 {following}")
        step = text.value(f"select i1 {ends}, i64 {tile.row + gap}, i64 {tile.row}")
        offset = text.value(f"add i64 {offset}, {step}")
        offsets.append(offset)
    return offsets


def _over_taps(text: Text, data: Sequence[str], sums: Sums) -> Sums:
    """Write the loop over a kernel's rows and columns around that over channels."""
    assert text.tile.taps is not None
    (rows, row), (columns, column) = text.tile.taps
    text.do("br label %taps")
    text.label("taps")
    tap, complete_tap = text.later("i64")
    place, complete_place = text.later("i64")
    offset, complete_offset = text.later("i64")
    b, complete_b = text.later("ptr")
    phis = {cell: text.later(text.wide) for cell in sums}
    inner, b_end = _over_steps(text, data, offset, b, {cell: name for cell, (name, _) in phis.items()}, "taps")
    text.do("br label %tapped")
    text.label("tapped")
    following = text.value(f"add i64 {tap}, 1")
    next_place = text.value(f"add i64 {place}, 1")
    ends = text.value(f"icmp eq i64 {next_place}, {columns}")
    complete_tap("0", "entry", following, "tapped")
    complete_place("0", "entry", text.value(f"select i1 {ends}, i64 0, i64 {next_place}"), "tapped")
    step = text.value(f"select i1 {ends}, i64 {row - (columns - 1) * column}, i64 {column}")
    complete_offset("0", "entry", text.value(f"add i64 {offset}, {step}"), "tapped")
    complete_b("%b", "entry", b_end, "tapped")
    for cell, (_, complete) in phis.items():
        complete(sums[cell], "entry", inner[cell], "tapped")
    more = text.value(f"icmp ult i64 {following}, {rows * columns}")
    text.do(f"br i1 {more}, label %taps, label %done")
    text.label("done")
    return inner


def _over_steps(  # noqa: PLR0917 - the operands of a sum
    text: Text, data: Sequence[str], offset: str, b: str, sums: Sums, origin: str
) -> tuple[Sums, str]:
    """Write the loop over the steps that lie side by side, and what is left of them; return the sums and b's end."""
    tile = text.tile
    whole = tile.depth - tile.depth % _UNROLLED
    if whole > _UNROLLED:
        text.do("br label %loop")
        text.label("loop")
        k, complete_k = text.later("i64")
        place, complete_place = text.later("ptr")
        phis = {cell: text.later(text.wide) for cell in sums}
        at = text.value(f"add i64 {k}, {offset}") if offset != "0" else k
        inner = _steps(text, data, at, place, {cell: name for cell, (name, _) in phis.items()}, _UNROLLED, ahead=True)
        following, behind = text.value(f"add i64 {k}, {_UNROLLED}"), text.place(place, _UNROLLED * tile.step)
        complete_k("0", origin, following, "loop")
        complete_place(b, origin, behind, "loop")
        for cell, (_, complete) in phis.items():
            complete(sums[cell], origin, inner[cell], "loop")
        more = text.value(f"icmp ult i64 {following}, {whole}")
        text.do(f"br i1 {more}, label %loop, label %rest")
        text.label("rest")
        sums, b = inner, behind
        offset = text.value(f"add i64 {offset}, {whole}") if offset != "0" else str(whole)
    else:
        whole = 0
    left = tile.depth - whole
    return _steps(text, data, offset, b, sums, left, ahead=False), text.place(b, left * tile.step)


def _steps(  # noqa: PLR0917 - the operands of a sum
    text: Text, data: Sequence[str], at: str, b: str, sums: Sums, count: int, *, ahead: bool
) -> Sums:
    tile = text.tile
    rows = [text.place(row, at) for row in data] if count else []
    current = dict(sums)
    for step in range(count):
        columns = []
        for j in range(tile.vectors):
            where = text.place(b, step * tile.step + j * tile.vector)
            columns.append(text.load(where, j, whole=tile.step == tile.lanes))
            if ahead and step * tile.lanes % _LINE == 0:
                text.do(
                    f"call void @llvm.prefetch.p0(ptr {text.place(where, _AHEAD * tile.step)}, i32 0, i32 3, i32 1)"
                )
        for i, row in enumerate(rows):
            factor = text.splat(text.value(f"load float, ptr {text.place(row, step)}, align 4"))
            for j, column in enumerate(columns):
                operands = f"{text.wide} {factor}, {text.wide} {column}, {text.wide} {current[i, j]}"
                current[i, j] = text.value(f"call {text.wide} @llvm.fmuladd.v{tile.lanes}f32({operands})")
    return current


def padding_function(unit: int, whole: int) -> tuple[str, str]:
    """Return name and text of what writes `whole` bytes: some units from elsewhere, behind some units of zeros."""
    name = f"tunery_padding_{unit}_{whole}"
    zeros = "call void @llvm.memset.p0.i64(ptr {}, i8 0, i64 {}, i1 false)"
    return (
        name,
        f"""define linkonce_odr hidden i32 @{name}(ptr noalias %to, ptr noalias %from, i32 %before, i32 %n) nounwind {{
  %some = zext i32 %before to i64
  %taken = zext i32 %n to i64
  %start = mul i64 %some, {unit}
  %size = mul i64 %taken, {unit}
  %stop = add i64 %start, %size
  %left = sub i64 {whole}, %stop
  %first = getelementptr i8, ptr %to, i64 %start
  %end = getelementptr i8, ptr %to, i64 %stop
  {zeros.format("%to", "%start")}
  call void @llvm.memcpy.p0.p0.i64(ptr %first, ptr %from, i64 %size, i1 false)
  {zeros.format("%end", "%left")}
  ret i32 0
}}""",
    )
