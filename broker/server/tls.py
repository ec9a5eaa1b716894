"""TLS of a process: its certificate, replaced without a restart, and the handshakes of clients (waits).

A `Chain` owns one `ssl.SSLContext`, which its listeners use as long as they live. A new certificate is loaded into that
living context: handshakes that begin from then on show it, existing connections are left alone. OpenSSL's treatment of
a half broken file is unreliable, so the very same octets are loaded into another context first: files are read once,
and a file that is replaced meanwhile belongs to the next look.

    look    files changed and rest since the last look -> read, parsed, tried      in a thread: disks may hang
    take    the tried octets go into the living context                            on the loop

A certificate and its key are two files as a rule, and replaced one after the other: hence the rest. Broken files keep
the certificate in force, with one report for each state of the files.

Added authorities are trusted from the next handshake on. One that is removed from the file is trusted until the process
ends: OpenSSL's store does not forget.

A socket before its handshake has the buffers of a TLS connection, without a sign-in. It counts as a connection from its
acceptance on: handshakes and connections together stay below the connections' limit, and handshakes alone below
HANDSHAKES_MAX (`cluster.link.door` chooses the one to end). A failure before the end of the handshake is reported to
its peer only: probes, and clients that do not trust the certificate.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from clusterbroker.cluster.link.door import Door
from clusterbroker.cluster.link.path_of import path_of

if TYPE_CHECKING:
    from clusterbroker.broker.stats.rows import Certificate

LOOK_S: Final = 2.0
FILE_BYTES_MAX: Final = 1 << 20
HANDSHAKES_MAX: Final = 4096
"""Some 54 KiB each."""
PATIENCE_S: Final = 1.0
"""After so long a handshake has to make room for another one."""

Emit = Callable[..., None]
"""`NodeLog.emit`: level, event, facts."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificates of the TLS listeners."""

    certificate: Path
    """PEM file: the node's certificate and its chain."""
    key: Path | None = None
    """PEM file with the private key; None: it is in the certificate's file."""
    authorities: Path | None = None
    """PEM file with the authorities that sign client certificates; None: clients are not asked for one."""
    client_certificate: Literal["none", "wanted", "required"] = "none"
    """Whether clients are asked for a certificate, and whether they are refused without one."""
    identity: Literal["distinguished_name", "common_name"] = "distinguished_name"
    """What of the certificate's subject is the user name for EXTERNAL."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS that is spoken."""
    ciphers: str = ""
    """Of TLS 1.2, as OpenSSL writes lists of them; empty: Python's choice. Those of TLS 1.3 are all good."""


class BadCertificate(ValueError):
    """The files cannot be used; one line with the file and the reason."""


class _Material(Struct, frozen=True):
    """Content of the files, parsed."""

    private: bytes
    chain: bytes
    trusted: bytes
    serial: str
    subject: str
    expires_ms: int
    """End of the chain's first certificate to end, ms since 1970."""
    authorities_expire_ms: int
    """The same of the authorities; 0: there are none."""


Signature = tuple[tuple[int, int, int] | None, ...]
"""(inode, size, time of change in ns) of each file."""


class Chain:
    """A certificate with its key in force, and the files that it came from."""

    def __init__(self, options: TlsOptions) -> None:
        """Raises BadCertificate."""
        self.options = options
        self._signature = self._seen = self._signature_now()
        self.material = self._read()
        self.context = _context(options, self.material)

    @property
    def serial(self) -> str:
        """Of the certificate in force, in hexadecimal."""
        return self.material.serial

    @property
    def facts(self) -> dict[str, Any]:
        """For a line of the log."""
        material = self.material
        return {
            "file": str(self.options.certificate),
            "serial": material.serial,
            "subject": material.subject,
            "expires": datetime.fromtimestamp(material.expires_ms / 1000, UTC).isoformat(timespec="seconds"),
        }

    # -- another one ------------------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Puts the files' content in force; False: it was before. Raises BadCertificate."""
        self._signature = self._seen = self._signature_now()
        return self.take(self._tried())

    def look(self) -> _Material | None:
        """The files' content, if changed since they were last read and at rest since the last look. May be called in a
        thread. Raises BadCertificate, once for each state of the files."""
        now = self._signature_now()
        rests, self._seen = now == self._seen, now
        if now == self._signature or not rests:
            return None
        self._signature = now
        return self._tried()

    def _tried(self) -> _Material:
        found = self._read()
        if found != self.material:
            _context(self.options, found)
        return found

    def take(self, found: _Material) -> bool:
        """Puts the content that a look found in force; False: it was before."""
        if found == self.material:
            return False
        _load(self.context, found)
        self.material = found
        return True

    # -- files ------------------------------------------------------------------------------------------------

    def _files(self) -> tuple[Path, ...]:
        options = self.options
        return tuple(path for path in (options.certificate, options.key, options.authorities) if path is not None)

    def _signature_now(self) -> Signature:
        found: list[tuple[int, int, int] | None] = []
        for path in self._files():
            try:
                stat = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _read(self) -> _Material:
        options = self.options
        chain = _octets(options.certificate, "certificate")
        private = b"" if options.key is None else _octets(options.key, "key")
        trusted = b"" if options.authorities is None else _octets(options.authorities, "authorities")
        first, expires_ms = _parsed(options.certificate, chain)
        authorities_expire_ms = 0
        if options.authorities is not None:
            _, authorities_expire_ms = _parsed(options.authorities, trusted)
        return _Material(
            private, chain, trusted, f"{first.serial_number:x}", first.subject.rfc4514_string(), expires_ms,
            authorities_expire_ms,
        )  # fmt: skip


def shown(protocol: str, host: str, port: int, chain: Chain) -> Certificate:
    """A listener's certificate, as a row."""
    options = chain.options
    from clusterbroker.broker.stats.rows import Certificate  # only a management process needs it

    return Certificate(
        protocol=protocol,
        ip_address=host,
        port=port,
        file=str(options.certificate),
        serial=chain.serial,
        expires_ms=chain.material.expires_ms,
        authorities_file="" if options.authorities is None else str(options.authorities),
        authorities_expire_ms=chain.material.authorities_expire_ms,
    )


def _octets(path: Path, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            octets = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadCertificate(
            f"tls.{what} {path}: {error.strerror or error}: name a PEM file that can be read"
        ) from None
    if len(octets) > FILE_BYTES_MAX:
        raise BadCertificate(f"tls.{what} {path}: has more than {FILE_BYTES_MAX >> 20} MiB: that is no PEM file")
    return octets


def _parsed(path: Path, octets: bytes) -> tuple[Any, int]:
    """(the first certificate, when the first of them ends in ms since 1970)."""
    from cryptography import x509  # a node without TLS does not pay for it

    try:
        found = x509.load_pem_x509_certificates(octets)
    except ValueError as error:
        raise BadCertificate(f"tls: {path} holds no certificate that can be read: {_line(error)}") from None
    return found[0], min(int(one.not_valid_after_utc.timestamp() * 1000) for one in found)


def _context(options: TlsOptions, material: _Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if options.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if options.ciphers:
        try:
            context.set_ciphers(options.ciphers)
        except ssl.SSLError:
            raise BadCertificate(f"tls.ciphers: '{options.ciphers}' names no cipher that OpenSSL has") from None
    wanted = {"none": ssl.CERT_NONE, "wanted": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    context.verify_mode = wanted[options.client_certificate]
    try:
        _load(context, material)
    except (ssl.SSLError, OSError, ValueError) as error:
        files = " and ".join(str(path) for path in (options.certificate, options.key) if path is not None)
        raise BadCertificate(f"tls: {files} cannot be used together: {_line(error)}") from None
    return context


def _load(context: ssl.SSLContext, material: _Material) -> None:
    if material.trusted:
        context.load_verify_locations(cadata=material.trusted.decode("ascii", "ignore"))
    with path_of(material.chain) as chain, path_of(material.private or material.chain) as private:
        context.load_cert_chain(chain, private, password=_locked)


def _locked() -> bytes:
    raise ValueError("the private key is locked by a password: store it without one, readable by the node only")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# -- watching -------------------------------------------------------------------------------------------------


def reload_all(chains: Sequence[Chain], emit: Emit) -> list[str]:
    """Reads the files of all chains now; one line for each failure, which is logged as well."""
    wrong = []
    for chain in chains:
        try:
            if chain.reload():
                emit("info", "tls.reloaded", **chain.facts)
        except BadCertificate as error:
            emit("error", "tls.kept", why=str(error), **chain.facts)
            wrong.append(str(error))
    return wrong


async def watch(chains: Sequence[Chain], emit: Emit, look_s: float = LOOK_S) -> None:
    """Looks at the files again and again, until it is cancelled."""
    while chains:
        await asyncio.sleep(look_s)
        for chain in chains:
            try:
                found = await asyncio.to_thread(chain.look)
                if found is not None and chain.take(found):
                    emit("info", "tls.reloaded", **chain.facts)
            except BadCertificate as error:
                emit("error", "tls.kept", why=str(error), **chain.facts)


class TlsDoor(Door):
    """Some listening sockets of one protocol."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext,
        serve: Callable[[], asyncio.BaseProtocol],
        room: Callable[[], int],
        refused: Callable[[str, str], None],
        *,
        handshake_s: float,
        goodbye_s: float | None = None,
    ) -> None:
        """`room()`: how many connections more there may be, beside those with a complete handshake."""
        super().__init__(sockets, HANDSHAKES_MAX, refused, room, PATIENCE_S)
        self._tls = tls
        self._serve = serve
        self._handshake_s = handshake_s
        self._goodbye_s = goodbye_s

    async def _greet(self, connection: socket.socket, host: str, where: str) -> None:  # noqa: ARG002
        protocol = self._serve()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._goodbye_s,
            )  # fmt: skip
        except (OSError, ssl.SSLError):
            connection.close()

    async def wait_closed(self) -> None:
        """As of `asyncio.Server`; nothing is left to wait for."""
