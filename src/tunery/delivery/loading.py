"""Loading a compiled network from its file."""

import json
import zipfile
from pathlib import Path

from tunery._errors import UsageError
from tunery.dialects import CompiledNetwork, get_dialect

MANIFEST = "manifest.json"


def load_compiled(path: str | Path, threads: int | None = None) -> CompiledNetwork:
    """Load a file written by `tunery compile`; call the result with one NumPy array per input.

    `threads` overrides the thread count the network was tuned for. The file is native code: load only what you trust.

    Raises:
        UsageError: there is no such file, or it is not a compiled network.

    Example:
        network = tunery.load_compiled("resnet18.tunery")
        [probabilities] = network(image)
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(MANIFEST))
            dialect = str(manifest["dialect"])
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; write one with `tunery compile MODEL -o {path}`") from None
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is not a compiled network; write one with `tunery compile MODEL -o {path}`"
        ) from error
    return get_dialect(dialect).load_network(path, threads)
