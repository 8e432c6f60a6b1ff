"""The system's headers that a source includes, before its parameters: to them, a macro such as N is any name."""

import re

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(<[^<>\n]+>)", re.MULTILINE)


def headers(source: str) -> str:
    """Return what includes those that are there; where the source does, they are known already."""
    names = dict.fromkeys(_INCLUDED.findall(source))
    return "".join(f"#if __has_include({name})\n#include {name}\n#endif\n" for name in names)
