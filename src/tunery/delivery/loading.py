"""Loading a compiled network from its file."""

import json
import shlex
import zipfile
from pathlib import Path

from tunery._errors import TuneryError, UsageError
from tunery.dialects import CompiledNetwork, NetworkCompiler, get_dialect

MANIFEST = "manifest.json"


def load_compiled(path: str | Path, threads: int | None = None) -> CompiledNetwork:
    """Load a file written by `tunery compile`; call the result with one NumPy array per input.

    `threads` overrides the thread count the network was tuned for; networks in one process may have different ones. The
    file is native code: load only what you trust.

    Raises:
        UsageError: there is no such file, it is not a compiled network or a damaged one, it was compiled by another
            version of the compiler than is installed, or `threads` is not positive.

    Example:
        network = tunery.load_compiled("resnet18.tunery")
        [probabilities] = network(image)
    """
    path = Path(path)
    quoted = shlex.quote(str(path))
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise UsageError(f"threads={threads!r} is no number of threads; write 1 or more, or nothing for the file's own")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(MANIFEST))
            dialect = str(manifest["dialect"])
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; write one with `tunery compile MODEL -o {quoted}`") from None
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is not a compiled network; write one with `tunery compile MODEL -o {quoted}`"
        ) from error
    chosen = NetworkCompiler.of(get_dialect(dialect))
    try:
        return chosen.load_network(path, threads)
    except TuneryError:
        raise
    except Exception as error:  # archives, linkers and compilers have many words for a damaged file
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{path} cannot be loaded, it is damaged or from another version ({reason}); write it again with "
            f"`tunery compile MODEL -o {quoted}`"
        ) from error
