"""Loading a compiled network from its file."""

import operator
import os
import shlex
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

from typing_extensions import override

from tunery._archive import ACCEPTS, DIMENSIONS, OTHERS, Archive, ArchiveError
from tunery._errors import TemporaryDirectoryError, TuneryError, UsageError, brief
from tunery._extras import compiler_parts
from tunery.dialects import Array, CompiledNetwork, NetworkCompiler, get_dialect
from tunery.dialects._loaded import MOST_THREADS
from tunery.domain import TensorSpec, merged_specs, shape_text

Shapes = tuple[tuple[int, ...], ...]


class ShapedNetwork(CompiledNetwork):
    """A compiled network for several shapes, of which each but the first is loaded when it is first called.
    `dimensions` are the names of its inputs' dimensions, "" without one, where it takes any shape."""

    def __init__(self, parts: Sequence[Archive], load: Callable[[Archive], CompiledNetwork]) -> None:
        self._load, self._parts = load, parts
        self._numbers: dict[Shapes, int] = {}
        self._any: int | None = None
        self.dimensions: Mapping[str, Sequence[str]] = {}
        self._warned = False
        inputs, outputs = [], []
        for number, told in enumerate(part.manifest for part in parts):
            own, given = (_specs(told[side]) for side in ("inputs", "outputs"))
            outputs.append(given)
            if ACCEPTS not in told:
                inputs.append(own)
                self._numbers[tuple(spec.shape for spec in own)] = number
                continue
            for accepted in told[ACCEPTS]:
                shapes = tuple(tuple(map(int, shape)) for shape in accepted)
                inputs.append(tuple(replace(spec, shape=shape) for spec, shape in zip(own, shapes, strict=True)))
                self._numbers.setdefault(shapes, number)
            if told.get(OTHERS):
                inputs.append(own)
                self._any, self.dimensions = number, dict(told[DIMENSIONS])
        self.inputs, self.outputs = merged_specs(inputs), merged_specs(outputs)
        first = load(parts[0])
        self.threads = first.threads
        self._networks = {0: first}
        self._known: dict[Shapes, CompiledNetwork] = {
            shapes: first for shapes, number in self._numbers.items() if number == 0
        }

    @property
    def shapes(self) -> list[Shapes]:
        return list(self._numbers)

    @override
    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Array]:
        if named:
            raise self._in_order()
        try:
            network = self._known.get(tuple([tuple(getattr(array, "shape", ())) for array in arrays]))
        except TypeError:  # a shape that is none, as of ONNX Runtime's OrtValue
            network = None
        network = network or self._network_for(arrays)
        return network(*arrays, out=out)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        return self._network_for(arrays)._run(arrays)

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        return self._network_for(arrays).time(arrays, calls)

    @override
    def profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        return self._network_for(arrays).profile(arrays)

    def _network_for(self, arrays: Sequence[Any]) -> CompiledNetwork:
        shapes = tuple(tuple(array.shape) for array in self.checked(arrays))
        number = self._numbers.get(shapes)
        if number is not None:
            self._known[shapes] = self._loaded(number)
            return self._known[shapes]
        held = " or ".join(self._told(one) for one in self._numbers)
        if self._any is None:
            raise UsageError(
                f"the network takes {held}, not {self._told(shapes)}; compile it for that too, or for all (--any-shape)"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"ONNX Runtime runs shapes that the network was not compiled for, as {self._told(shapes)}: it was for "
                f"{held}",
                stacklevel=3,
            )
        return self._loaded(self._any)

    def _loaded(self, number: int) -> CompiledNetwork:
        # Without a lock: what two threads load at once is loaded twice, and one of both is kept.
        if number not in self._networks:
            self._networks.setdefault(number, self._load(self._parts[number]))
        return self._networks[number]

    def _told(self, shapes: Shapes) -> str:
        named = zip(self.inputs, shapes, strict=True)
        return ", ".join(f"{spec.name:.80}{shape_text(shape)}" for spec, shape in named if -1 in spec.shape)


def _specs(told: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, tuple(map(int, shape)), dtype) for name, shape, dtype in told)


_NOEXEC = "failed to map segment"  # of the linker
Trusted = str | Path | Sequence[str | Path]


def load_compiled(path: str | Path, threads: int | None = None, *, trusted: Trusted | None = None) -> CompiledNetwork:
    """Load a file written by `tunery compile`; call the result with one NumPy array per input.

    Of a file for several shapes, each call runs what was compiled for the shapes of its inputs, loaded at its first.
    `threads` overrides the thread count the network was tuned for; networks in one process may have different ones. The
    file is native code: load only what you trust. With `trusted`, the files of one or several public keys, nothing is
    loaded that was not signed with one of them (`tunery compile --sign`).

    Example:
        network = tunery.load_compiled("resnet18.tunery")
        [probabilities] = network(image)
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(f"give the path of a file that `tunery compile` wrote, as text or a Path, not {path!r:.60}")
    path, threads = Path(path), _threads(threads)
    archive = opened(path, trusted)
    try:
        if len(archive.shapes) > 1 or ACCEPTS in archive.manifest:
            network = ShapedNetwork(archive.here, lambda part: _loaded(part, threads))
            weakref.finalize(network, archive.close)
            return network
    except BaseException:
        archive.close()
        raise
    with archive:
        return _loaded(archive, threads)


def _loaded(archive: Archive, threads: int | None) -> CompiledNetwork:
    path = archive.path
    try:
        with undamaged(path), compiler_parts(str(path)):
            return _compiler_of(archive).load_network(archive, threads)
    except ImportError as error:
        raise UsageError(
            f"{path} needs {error.name or 'a module'}, which cannot be imported here ({error}); install tunery again, "
            "with all that it needs"
        ) from error


def _threads(asked: object) -> int | None:
    if asked is None:
        return None
    if not isinstance(asked, SupportsIndex) or not 1 <= operator.index(asked) <= MOST_THREADS:
        raise UsageError(
            f"threads={asked!r:.60} is no number of threads; write 1 to {MOST_THREADS}, or nothing for the file's own"
        )
    return operator.index(asked)


@contextmanager
def undamaged(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Say in one sentence that a file is damaged, whatever the block trips over; errors of kind `others` pass."""
    try:
        yield
    except Exception as error:  # archives, linkers and compilers have many words for a damaged file
        if isinstance(error, (TuneryError, ImportError, *others)):
            raise
        reason = brief(error)
        if (isinstance(error, OSError) and error.errno) or _NOEXEC in str(error):
            raise TemporaryDirectoryError(
                f"{path} cannot be loaded ({reason}): its code goes through a temporary directory; set TMPDIR to one "
                "that has room, can be written and is not mounted noexec"
            ) from error
        raise UsageError(
            f"{path} cannot be loaded, it is damaged or from another version ({reason}); write it again with "
            f"`tunery compile MODEL -o {shlex.quote(str(path))}`"
        ) from error


def opened(path: Path, trusted: Trusted | None) -> Archive:
    again = write_one(path)
    try:
        archive = Archive(path)
        try:
            if trusted is not None:
                check_trusted(archive, path, trusted)
            for part in archive.here:
                _compiler_of(part)
        except BaseException:
            archive.close()
            raise
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; {again}") from None
    except PermissionError:
        raise UsageError(f"{path} may not be read by you; ask its owner, or {again}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; {again}") from error
    except (ArchiveError, ValueError) as error:
        raise UsageError(f"{path} is not a compiled network: {error}; {again}") from error
    return archive


def _compiler_of(archive: Archive) -> NetworkCompiler:
    name = archive.manifest.get("dialect")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ArchiveError("its manifest names no dialect")
    return NetworkCompiler.of(get_dialect(name))


def write_one(path: Path) -> str:
    place = path.with_name(f"{path.stem}.tunery") if path.suffix != ".tunery" and os.path.isfile(path) else path  # noqa: PTH113 - Path raises where a name is too long
    return f"write one with `tunery compile MODEL -o {shlex.quote(str(place))}`"


def check_trusted(archive: Archive, path: Path, trusted: Trusted) -> None:
    with compiler_parts("checking a signature"):
        from tunery.delivery.files.signing import check_signature, read_public_key

    named = [trusted] if isinstance(trusted, str | Path) else trusted
    if not isinstance(named, Sequence) or not all(isinstance(each, str | Path) for each in named):
        raise UsageError(f"trusted={trusted!r:.60} is no file of a public key, and no list of such files")
    check_signature(archive, path, [read_public_key(Path(each)) for each in named])
