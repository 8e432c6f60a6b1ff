"""Python as it is where tunery is installed without the extra that has the compiler."""

import re
from importlib.metadata import requires

_NAMES = {"apache-tvm": "tvm"}
EXTRA = {
    _NAMES.get(name, name)
    for line in requires("tunery") or []
    if re.search(r"extra == ['\"]tvm['\"]", line)
    for name in re.findall(r"^[\w.-]+", line)
}
WITHOUT = f"import json, sys\nsys.modules.update(dict.fromkeys({sorted(EXTRA)!r}))\n"
"""Code after which nothing of that extra can be imported."""
