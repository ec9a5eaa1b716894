"""`python -m clusterbroker_workers module:Class`: run a worker with the variables WORKER_* of its pool."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import sys
from types import ModuleType

from .environment import Environment, Misconfigured
from .runner import Runner, configure_log
from .worker import Worker

EXIT_USAGE = 64


def find(reference: str) -> type[Worker]:
    """The class that `module:Class` or `file.py:Class` names. Raises Misconfigured."""
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise Misconfigured(f"{reference!r} names no worker: give module:Class")
    try:
        found = getattr(_of_file(module) if module.endswith(".py") else importlib.import_module(module), name)
    except (ImportError, AttributeError, OSError) as error:
        raise Misconfigured(f"{reference!r} is not there: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise Misconfigured(f"{reference!r} is no worker: derive it from clusterbroker_workers.Worker")
    return found


def _of_file(file: str) -> ModuleType:
    """Modules beside it are found as well. Raises ImportError, OSError."""
    directory, name = os.path.split(os.path.abspath(file))
    sys.path.insert(0, directory)
    name = name.removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _serve(worker: type[Worker], environment: Environment) -> int:
    return await Runner(worker(), environment).run()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m clusterbroker_workers", description=__doc__)
    parser.add_argument("worker", help="module:Class, found from the working directory on, or file.py:Class")
    options = parser.parse_args(arguments)
    configure_log()
    sys.path.append(os.getcwd())
    try:
        worker, environment = find(options.worker), Environment.read(os.environ)
    except Misconfigured as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return asyncio.run(_serve(worker, environment))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)  # a handler that is cut short holds a thread, and would hold the process
