"""The TLS of a process: its certificate, and the replacement without a restart (waits).

A `Chain` owns one `ssl.SSLContext`, which its listeners use as long as they live. A new certificate is loaded into
that living context: handshakes that begin from then on show it, existing connections are left alone. OpenSSL's
treatment of a file that is broken half way is unreliable, so nothing is loaded into the living context before the
very same octets were loaded into another one: files are read once, and a file that is replaced meanwhile is the next
look's.

    look    files changed and rest since the last look -> read, parsed, tried      in a thread: disks may hang
    take    the tried octets go into the living context                            on the loop

A certificate and its key are two files as a rule, and replaced one after the other: hence the rest. Broken files keep
the certificate in force, with one report for each state of the files.

Added authorities are trusted from the next handshake on. One that is removed from the file is trusted until the
process ends: OpenSSL's store does not forget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from clusterbroker.cluster.link.path_of import path_of

if TYPE_CHECKING:
    import ssl

    from clusterbroker.broker.stats.rows import Certificate

LOOK_S: Final = 2.0
FILE_BYTES_MAX: Final = 1 << 20

Say = Callable[..., None]
"""`NodeLog.say`: level, event, facts."""


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
    """What stood in the files, and what was read out of it."""

    private: bytes
    chain: bytes
    trusted: bytes
    serial: str
    subject: str
    expires_ms: int
    """Of that certificate of the chain which ends first, ms since 1970."""
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
        self._material = self._read()
        self.context = _context(options, self._material)

    @property
    def serial(self) -> str:
        """Of the certificate in force, in hexadecimal."""
        return self._material.serial

    @property
    def expires_ms(self) -> int:
        """When the first certificate of the chain ends, ms since 1970."""
        return self._material.expires_ms

    @property
    def authorities_expire_ms(self) -> int:
        """When the first of the authorities for clients ends; 0: there are none."""
        return self._material.authorities_expire_ms

    @property
    def facts(self) -> dict[str, Any]:
        """For a line of the log."""
        material = self._material
        return {
            "file": str(self.options.certificate),
            "serial": material.serial,
            "subject": material.subject,
            "expires": datetime.fromtimestamp(material.expires_ms / 1000, UTC).isoformat(timespec="seconds"),
        }

    # -- another one ------------------------------------------------------------------------------------------

    def reload(self) -> bool:
        """What the files say now is in force; False: they say what they said. Raises BadCertificate."""
        self._signature = self._seen = self._signature_now()
        return self._take(self._tried())

    def look(self) -> _Material | None:
        """What is in the files, if they have changed since they were last read and rest since the last look. May be
        called in a thread. Raises BadCertificate, once for each state of the files."""
        now = self._signature_now()
        rests, self._seen = now == self._seen, now
        if now == self._signature or not rests:
            return None
        self._signature = now
        return self._tried()

    def take(self, found: _Material) -> bool:
        """What a look found is in force now; False: it was before."""
        return self._take(found)

    def _tried(self) -> _Material:
        found = self._read()
        if found != self._material:
            _context(self.options, found)
        return found

    def _take(self, found: _Material) -> bool:
        if found == self._material:
            return False
        _load(self.context, found)
        self._material = found
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
    """What a listener shows, as a row."""
    options = chain.options
    from clusterbroker.broker.stats.rows import Certificate  # only who has a management process needs it

    return Certificate(
        protocol=protocol,
        ip_address=host,
        port=port,
        file=str(options.certificate),
        serial=chain.serial,
        expires_ms=chain.expires_ms,
        authorities_file="" if options.authorities is None else str(options.authorities),
        authorities_expire_ms=chain.authorities_expire_ms,
    )


def tls_context(options: TlsOptions) -> Chain:
    """The chain of these options, in force. Raises BadCertificate."""
    return Chain(options)


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
    from cryptography import x509  # who has no TLS does not pay for it

    try:
        found = x509.load_pem_x509_certificates(octets)
    except ValueError as error:
        raise BadCertificate(f"tls: {path} holds no certificate that can be read: {_line(error)}") from None
    return found[0], min(int(one.not_valid_after_utc.timestamp() * 1000) for one in found)


def _context(options: TlsOptions, material: _Material) -> ssl.SSLContext:
    import ssl

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


def reload_all(chains: Sequence[Chain], say: Say) -> list[str]:
    """Reads the files of all chains now; what went wrong, one line for each, is told and answered."""
    wrong = []
    for chain in chains:
        try:
            if chain.reload():
                say("info", "tls.reloaded", **chain.facts)
        except BadCertificate as error:
            say("error", "tls.kept", why=str(error), **chain.facts)
            wrong.append(str(error))
    return wrong


async def watch(chains: Sequence[Chain], say: Say, look_s: float = LOOK_S) -> None:
    """Looks at the files again and again, until it is cancelled."""
    while chains:
        await asyncio.sleep(look_s)
        for chain in chains:
            try:
                found = await asyncio.to_thread(chain.look)
                if found is not None and chain.take(found):
                    say("info", "tls.reloaded", **chain.facts)
            except BadCertificate as error:
                say("error", "tls.kept", why=str(error), **chain.facts)


__all__ = ["BadCertificate", "Chain", "TlsOptions", "reload_all", "shown", "tls_context", "watch"]
