"""The file of authorities by which workers trust brokers' certificates: `worker_authorities` of their node."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 64 << 10
"""It is one variable of a worker's environment, of which Linux takes 128 KiB."""
CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class BadAuthorities(ValueError):
    """One line: the file, and what to do."""


def read(file: Path) -> str:
    """Its certificates, as PEM, and nothing else of it: a key beside them is not for workers. Raises BadAuthorities."""
    where = f"worker_authorities {file}"
    try:
        text = file.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise BadAuthorities(f"{where}: {error.strerror}: name a PEM file that the node can read") from error
    pem = "".join(found[0] + "\n" for found in CERTIFICATE.finditer(text))
    if len(pem) > BYTES_MAX:
        raise BadAuthorities(f"{where}: more than {BYTES_MAX >> 10} KiB: name a file with the nodes' authorities alone")
    if not pem:
        raise BadAuthorities(f"{where}: no certificate is in it: name a PEM file")
    try:
        ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise BadAuthorities(f"{where}: a certificate in it cannot be read: {error.reason}: write it anew") from error
    return pem
