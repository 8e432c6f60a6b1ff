"""One compiled file of several: a network for the processors of all of them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunery._errors import UsageError
from tunery._extras import compiler_parts
from tunery._outputs import NETWORK, check_output, publish
from tunery.delivery.files.loading import Trusted, identified, undamaged
from tunery.dialects import NetworkCompiler, get_dialect, onnxruntime

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def combine(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    trusted: Trusted | None = None,
    force: bool = False,
    sign: str | Path | None = None,
) -> Path:
    """Write one file of compiled files of one network for different processors or shapes, and return its path.

    Loading takes the target that needs the most instructions of those that the processor has. Weights are stored
    once. `trusted` is as for `load_compiled`, `sign` a private key's file; with `force`, `output` may replace a file of
    another kind.

    Example:
        tunery.combine(["resnet18-old.tunery", "resnet18-new.tunery"], "resnet18.tunery")
    """
    paths, output = [Path(one) for one in files], Path(output)
    if len({one.resolve() for one in paths}) < max(2, len(paths)):
        raise UsageError("name at least two different compiled files, of one network for different processors")
    inputs = [*paths, *([Path(sign)] if sign else [])]
    check_output(output, NETWORK, inputs=inputs, force=force)
    key = _key(Path(sign)) if sign else None
    found = {path: identified(path, trusted) for path in paths}
    # What ONNX Runtime runs of a file for several shapes goes along; a file that it runs whole is of it alone.
    own = {next((name for name in names if name != onnxruntime.NAME), names[0]) for _, names in found.values()}
    if len(own) > 1:
        raise UsageError(
            "these files are of different compilers; a file that ONNX Runtime runs whole needs no other: use it alone"
        )
    with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
        made = Path(scratch, "network")
        try:
            with compiler_parts("combining files"), undamaged(Path(" or ".join(map(str, paths))), OSError):
                NetworkCompiler.of(get_dialect(own.pop())).combine(
                    {path: one for path, (one, _) in found.items()}, made
                )
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}; name another file") from error
        if key:
            from tunery.delivery.files.signing import sign as add_signature

            add_signature(made, key)
        publish(made, output, NETWORK, inputs=inputs, force=force)
    return output


def _key(path: Path) -> "Ed25519PrivateKey":
    with compiler_parts("signing"):
        from tunery.delivery.files.signing import read_key
    return read_key(path)
