"""Children of a process that a test has started."""

from __future__ import annotations

import psutil


def children_with(pid: int, word: str) -> list[psutil.Process]:
    """Those that run and have the word among the words of their command; one that ends meanwhile is none."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if word in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:  # a zombie is one too
            continue
    return found
