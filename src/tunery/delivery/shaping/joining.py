"""Writing one file of what was compiled for several shapes, and of the model with free dimensions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunery._archive import ACCEPTS, ANY, MEMBERS, SHAPES, new_archive, open_archive
from tunery.delivery.shaping.shaped_network import Shapes
from tunery.dialects import NetworkCompiler, get_dialect


def join(
    compiled: Sequence[Path],
    free: Path | None,
    accepted: Sequence[Shapes],
    output: Path,
    scratch: Path,
    *,
    any_shape: bool,
) -> None:
    """Write files of one network for different shapes, and one whose dimensions are `free`, to one new file.

    The weights of those that were compiled are stored once. The free one is what runs the shapes `accepted`, and with
    `any_shape` all others.
    """
    parts: list[Path] = list(compiled)
    if len(compiled) > 1:
        files = {}
        for path in compiled:
            with open_archive(path) as archive:
                files[path] = archive.digest
                name = archive.manifest["dialect"]
        parts = [scratch / "together"]
        NetworkCompiler.of(get_dialect(name)).combine(files, parts[0])
    told: list[dict[str, Any]] = []
    with new_archive(output) as made:
        for path in (*parts, *([free] if free else [])):
            with open_archive(path) as archive:
                for name in archive.sizes:
                    made.copy(archive, name)
                more = {ACCEPTS: accepted, ANY: any_shape} if path == free else {}
                told += [_alone(one) | more for one in archive.shapes or [archive.manifest]]
        made.finish({"dialect": told[0]["dialect"], "network": told[0]["network"], "format": SHAPES, SHAPES: told})


def _alone(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name != MEMBERS}
