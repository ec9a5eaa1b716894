"""Optional dependencies: one sentence for all that asks for one."""

from __future__ import annotations

from importlib.util import find_spec


def wanting(what: str, library: str, extra: str) -> str:
    """What a user reads where a library is not installed. `extra`: of this package."""
    return f"{what} needs {library}: pip install 'clusterbroker[{extra}]'"


def is_there(module: str) -> bool:
    """The module, or the package that it is in, can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
