"""How to install what only some uses need."""

import importlib.metadata
import shlex


def pip_install(extra: str) -> str:
    """Return the command that installs what an extra of tunery asks for.

    It names the packages one by one: no index need have a package called tunery.
    """
    lines = [line.partition(";") for line in importlib.metadata.requires("tunery") or ()]
    needed = [need.strip() for need, _, marker in lines if marker.strip().replace("'", '"') == f'extra == "{extra}"']
    return f"pip install {shlex.join(needed)}"
