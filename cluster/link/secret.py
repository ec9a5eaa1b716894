"""The join secret: its holders are nodes of the cluster, all others strangers (waits: files).

One text of at least 32 bytes, found at the given path, else at CLUSTERBROKER_SECRET_FILE, else in
~/.config/clusterbroker/secret, where it is created on first use like Erlang's cookie: nodes of one user on one
machine find each other, other machines get a copy. All keys come from it by HKDF-SHA256, each for one purpose, so
none reveals anything of another:

    authority   seed of the Ed25519 key that signs the nodes' certificates
    beats       key of the tags on datagrams
    founding    key of the cluster's id, for the founders, without anything else in common yet
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from clusterbroker.journal.platform import sync

SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 4096
ENVIRONMENT: Final = "CLUSTERBROKER_SECRET_FILE"
_MAKE: Final = "make one with: (umask 077; head -c 48 /dev/urandom | base64 -w 0 >"


class BadSecret(ValueError):
    """No usable secret: one line with what is wrong, where, and what to do, and never the secret."""


class Secret:
    """The join secret. Its text is in no repr and no error."""

    __slots__ = ("_raw", "origin")

    def __init__(self, raw: bytes, origin: str = "") -> None:
        """Raises BadSecret; `origin` is the path it came from, for error lines."""
        if len(raw) < SECRET_BYTES_MIN:
            raise BadSecret(
                f"the join secret in {origin or 'memory'} has {len(raw)} bytes, it needs at least {SECRET_BYTES_MIN}: "
                f"{_MAKE} {origin or 'FILE'})"
            )
        self._raw = raw
        self.origin = origin

    def __repr__(self) -> str:
        return f"Secret(origin={self.origin!r})"

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose."""
        info = b"clusterbroker 1 " + purpose.encode()
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._raw)

    def founded_by(self, peers: Iterable[str]) -> str:
        """The id of the cluster that these founders make: 32 hex digits.

        `peers` are the words of --peers, NAME=HOST:PORT; their order does not matter.
        """
        text = ",".join(sorted(word.strip() for word in peers))
        return hmac.new(self.key("founding"), text.encode(), hashlib.sha256).hexdigest()[:32]


def default_path(environment: Mapping[str, str]) -> Path:
    """Where the secret is by default: beneath XDG_CONFIG_HOME, else ~/.config."""
    home = environment.get("XDG_CONFIG_HOME") or ""
    base = Path(home) if home.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".config"
    return base / "clusterbroker" / "secret"


def find_secret(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> Secret:
    """The secret of `path`, else of the environment's, else of the default path, where it is made if it is missing.

    Raises BadSecret.
    """
    if path is None and (named := environment.get(ENVIRONMENT)):
        path = Path(named)
    if path is not None:
        return read_secret(path)
    path = default_path(environment)
    try:
        _make_if_missing(path)
    except OSError as error:
        raise BadSecret(
            f"cannot make the join secret {path} ({error.strerror}): name a file with --secret-file or {ENVIRONMENT}"
        ) from None
    return read_secret(path)


def read_secret(path: Path) -> Secret:
    """Raises BadSecret when the file is missing, unreadable, readable by everybody, too short or too long."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(SECRET_BYTES_MAX + 1)
    except FileNotFoundError:
        raise BadSecret(
            f"the join secret {path} does not exist: copy it from another node, or {_MAKE} {path})"
        ) from None
    except OSError as error:
        raise BadSecret(
            f"cannot read the join secret {path} ({error.strerror}): make it readable for the broker's user"
        ) from None
    if mode & 0o007:
        raise BadSecret(f"the join secret {path} is open to every user (mode {mode:04o}): chmod 600 {path}")
    if len(raw) > SECRET_BYTES_MAX:
        raise BadSecret(f"the join secret {path} is longer than {SECRET_BYTES_MAX} bytes: is it the right file?")
    return Secret(raw.strip(), str(path))


def _make_if_missing(path: Path) -> None:
    """Two nodes that start at the same moment end with the same secret: linking the file is refused to the second."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_urlsafe(48).encode() + b"\n")
            file.flush()
            sync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
