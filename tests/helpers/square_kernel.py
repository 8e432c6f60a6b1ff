"""The kernel file of a kernel that squares numbers, in any language: what it does beside that, its source says."""


def square_file(source: str, numbers: int, more: str) -> str:
    """Return it: `source` are the lines that name the source, `more` are the tables of its parameters and launch."""
    return f"""
function = "square"
{source.strip()}
[problem]
N = {numbers}
[[arguments]]
name = "x"
shape = ["N"]
[[arguments]]
name = "y"
shape = ["N"]
output = true
{more.strip()}
[reference]
numpy = "x * x"
"""
