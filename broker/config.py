"""Every setting of a node, once: its name, its default, what it means. The only reader of file, environment and flags.

A setting's value is what the command line says; else what the environment says (`CLUSTERBROKER_NAME`, for a setting
in a section `CLUSTERBROKER_LIMITS__HEARTBEAT_S`); else what the TOML file says (`name = "a"`, `[limits]
heartbeat_s = 30`); else the default. Floors declare their own small options beside the code that uses them; this
module says what of them may be set, checks it, and composes them.

What is wrong raises `ConfigError` with one line: the setting, where it was set, and what to do.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ByteSize, Field, PrivateAttr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from clusterbroker.broker.boot_definitions import BadDefinitions, BootDefinitions, SeveralDefinitions
from clusterbroker.broker.config_sections import (
    Addresses,
    AlarmSettings,
    Amqp10Settings,
    AuditSettings,
    JournalSettings,
    LimitSettings,
    LogSettings,
    OAuth2Settings,
    TlsSettings,
    Words,
    words,
)
from clusterbroker.broker.extras import is_there, wanting
from clusterbroker.broker.foreman.templates import BadTemplate, templates
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.oauth2.options import ALGORITHMS, OAuth2Options
from clusterbroker.broker.peer_list import members, named
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.listener import Address, address
from clusterbroker.broker.server.options import NAME, ClusterOptions, Definitions, ServerOptions
from clusterbroker.broker.server.span_options import SpanOptions
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.broker.stats.totals import SAMPLE_S
from clusterbroker.cluster.link.hello import valid_name
from clusterbroker.journal.options import JournalOptions

ENVIRONMENT_PREFIX = "CLUSTERBROKER_"
COMMANDS_READ = frozenset(("AMQP_URL", "PASSWORD", "TOKEN", "URL", "USER"))
"""Variables that are no settings of a node: commands and pipelines read them."""
_SERVICE_LINK = re.compile(r"\w+_(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=.*|PORT_\d+_\w+=.*|PORT=[a-z]+://.*)")
"""What Kubernetes tells each pod of a service that is called clusterbroker, or clusterbroker-something."""


class ConfigError(Exception):
    """One line for the operator."""


class NodeConfig(BaseSettings):
    """A node's configuration; `load` reads it."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    name: str = Field(default="node", pattern=f"^{NAME.pattern}$")
    """The node's name: letters, digits and _ . @ -; in logs, and part of names that the node makes up."""
    data_dir: Path = Path("clusterbroker-data")
    """Where wiring and messages are kept; made when it is not there."""
    amqp: Addresses = (Address("127.0.0.1", 5672),)
    """Where AMQP is spoken: HOST:PORT, several separated by commas; port 0 takes a free one."""
    amqps: Addresses = ()
    """Where AMQP inside TLS is spoken; needs [tls] certificate."""
    cluster: Addresses = ()
    """Where other nodes are spoken to, TCP and UDP: HOST:PORT. Empty: as `peers` says, or nowhere (one node)."""
    http: Addresses = ()
    """Where the management API is served, by a process beside the node: HOST:PORT, several separated by commas. Empty:
    nowhere."""
    https: Addresses = ()
    """Where it is served inside TLS; needs [tls] certificate."""
    http_client_certificate: Literal["none", "required"] = "none"
    """Whether clients of `https` must show a certificate of [tls] authorities; they sign in all the same."""
    http_proxies: Words | None = None
    """Addresses and networks of proxies that are believed what they say of their clients (X-Forwarded-For, -Proto);
    empty: none is. Without it those of this machine are believed as far as it takes rights away."""
    http_sample_s: float = Field(default=SAMPLE_S, ge=0.1, le=60)
    """How often the management API takes the nodes' numbers while somebody asks for them (RabbitMQ:
    collect_statistics_interval)."""
    peers: str = ""
    """NAME@HOST:PORT (cluster addresses) of all founding members, separated by commas; NAME@HOST:PORT/witness for one
    that votes and holds no messages. Empty: one node."""
    found: bool = False
    """Whether a node with `cluster` and without `peers` makes an empty data directory that of a new cluster, as its
    first member. Without it such a start is refused: the directory may just not be mounted, or the node should join."""
    join: bool = False
    """Whether a node that `peers` does not name makes an empty data directory that of a new member of their cluster, as
    `clusterbroker join` does. Without it such a start is refused. A founder with an empty data directory asks the
    others once whether the cluster stands already, and founds when nobody takes it in."""
    advertised_cluster: str = ""
    """HOST:PORT at which other nodes reach this one, when `peers` does not name it and `cluster` is no address to dial
    (0.0.0.0); empty: as `cluster` says."""
    secret_file: Path | None = None
    """File with the join secret that all nodes share; empty: ~/.config/clusterbroker/secret, made when missing."""
    cluster_dial: str = ""
    """NAME=HOST:PORT, separated by commas: where this node dials others instead of at the addresses they give."""
    cut_off_s: float = Field(default=10.0, ge=1, le=3600)
    """How long a member that is cut off from the majority keeps its clients, silent, before it ends their connections:
    they may find another member then, and it begins again."""
    advertised_amqp: str = ""
    """AMQP addresses that clients are told, separated by commas; empty: the listeners' own."""
    worker_authorities: Path | None = None
    """PEM file with the authorities that sign the certificates of this node and the other members: workers of pools get
    them (WORKER_AMQP_CA_PEM), and trust no others; empty: those of a worker's system."""
    default_user: str = "guest"
    """User made with a new broker, with all permissions in `default_vhost`; empty: none is made."""
    default_vhost: str = Field(default="/", min_length=1, max_length=255)
    """Vhost made with a new broker beside "/", for its default user."""
    default_password: str = Field(default="guest", repr=False)
    """Its password."""
    default_password_file: Path | None = None
    """File with its password in the place of `default_password`; nobody but the node's user and group may read it."""
    definitions_file: Path | None = None
    """File with definitions (JSON, as `clusterbroker definitions export` or RabbitMQ writes it) that are imported at
    each start, before clients are accepted; empty: none are."""
    definitions_skip_unsupported: bool = False
    """Whether what only RabbitMQ has is left out of `definitions_file`, with warnings in the log; else the node does
    not start with it."""
    stop_grace_s: float = Field(default=3.0, ge=0, le=600)
    """How long clients may take to say goodbye when the node stops."""
    drain_ends_at_start: bool = False
    """Whether a member that was drained takes queues and clients again when it is started: for those who drain it
    before each stop (`clusterbroker drain`)."""
    limits: LimitSettings = LimitSettings()
    """What keeps the node bounded."""
    amqp10: Amqp10Settings = Amqp10Settings()
    """AMQP 1.0."""
    journal: JournalSettings = JournalSettings()
    """How messages are kept on disk."""
    tls: TlsSettings = TlsSettings()
    """Certificates."""
    oauth2: OAuth2Settings = OAuth2Settings()
    """Tokens of an authority."""
    audit: AuditSettings = AuditSettings()
    """Lines about administrative operations."""
    otel: SpanOptions = SpanOptions()
    """Spans of sampled messages."""
    alarms: AlarmSettings = AlarmSettings()
    """When publishers have to wait."""
    log: LogSettings = LogSettings()
    """What is written on standard error."""
    _pools_file: Path | None = PrivateAttr(default=None)
    """The config file, if it has sections [pools.NAME]. They are no settings: neither the environment nor a flag may
    say what is executed, and the foreman reads them by itself."""
    _pools: BootDefinitions | None = PrivateAttr(default=None)
    """Pools that they declare."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    @model_validator(mode="after")
    def _makes_sense(self) -> NodeConfig:
        for name, wanted in (("amqps", self.amqps), ("https", self.https)):
            if wanted and self.tls.certificate is None:
                raise ValueError(f"{name}: needs a certificate: set [tls] certificate to a PEM file")
        if self.http_client_certificate != "none" and self.tls.authorities is None:
            raise ValueError("http_client_certificate: needs authorities: set [tls] authorities to a PEM file")
        _check_proxies(self.http_proxies or ())
        _check_tokens(self.oauth2)
        if self.tls.client_certificate != "none" and self.tls.authorities is None:
            raise ValueError("tls.client_certificate: needs authorities: set [tls] authorities to a PEM file")
        if not self.amqp and not self.amqps:
            raise ValueError("amqp: the node would listen nowhere: give amqp or amqps an address")
        if len(self.cluster) > 1:
            raise ValueError("cluster: one address is enough: other nodes are told one")
        peers = members(self.peers)
        if self.peers and self.name not in peers and not self.cluster:
            raise ValueError(f"peers: '{self.name}' is not among them: name it there, or give its address by cluster")
        if (self.peers or self.cluster) and not valid_name(self.name):
            raise ValueError(f"name: '{self.name}' cannot be a member's: use letters, digits and _ . -")
        if self.join and not self.peers:
            raise ValueError("join: nobody could be asked: name members of the cluster by peers")
        if self.advertised_cluster:
            try:
                address(self.advertised_cluster)
            except ValueError as error:
                raise ValueError(f"advertised_cluster: {error}") from None
        named(self.cluster_dial, "=", "cluster_dial")
        if self.default_password_file is not None and "default_password" in self.model_fields_set:
            raise ValueError("default_password_file: default_password is given as well: say one of them")
        return self

    def _audit_options(self) -> AuditOptions:
        """Raises ConfigError."""
        file = self.audit.file
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(
                f"audit.file: there is no directory {file.absolute().parent}: make it, for the node to write"
            )
        return AuditOptions(**_plain(self.audit))

    def _first_password(self) -> str:
        """Raises ConfigError."""
        file = self.default_password_file
        return self.default_password if file is None else _secret_of("default_password_file", file)

    def _definitions(self) -> Definitions | None:
        """Raises ConfigError."""
        found = [] if self._pools is None else [self._pools]
        if self.definitions_file is not None:
            try:
                read = BootDefinitions.read(self.definitions_file, skip_unsupported=self.definitions_skip_unsupported)
            except BadDefinitions as error:
                raise ConfigError(f"definitions_file: {error}") from None
            found.insert(0, read)  # it may have the vhosts of the pools
        return SeveralDefinitions(found) if len(found) > 1 else found[0] if found else None

    def _cluster_options(self) -> ClusterOptions | None:
        if not self.cluster and not self.peers:
            return None
        peers = members(self.peers)
        own = peers.get(self.name)
        listen = self.cluster[0] if own is None or self.cluster else address(own[0])
        others = tuple(where for name, (where, _) in peers.items() if name != self.name)
        peers.setdefault(self.name, (self.advertised_cluster or str(listen), False))
        return ClusterOptions(
            listen=listen,
            peers=tuple((name, where, witness) for name, (where, witness) in sorted(peers.items())),
            secret_file=self.secret_file,
            dial=named(self.cluster_dial, "=", "cluster_dial"),
            advertised_amqp=words(self.advertised_amqp),
            cut_off_s=self.cut_off_s,
            founds=own is not None or (self.found and not self.peers),
            joins=others if self.join else (),
        )

    def options(self) -> ServerOptions:
        """What the node is started with. Raises ConfigError when a file that a setting names cannot be used."""
        tls = self.tls
        return ServerOptions(
            data_dir=self.data_dir,
            amqp=self.amqp,
            amqps=self.amqps,
            http=self.http,
            https=self.https,
            http_client_certificate=self.http_client_certificate,
            http_proxies=self.http_proxies,
            http_sample_s=self.http_sample_s,
            oauth2=OAuth2Options(**dict(self.oauth2)) if self.oauth2.resource_server_id else None,
            audit=self._audit_options(),
            spans=self.otel if self.otel.endpoint else None,
            tls=None if tls.certificate is None else TlsOptions(**{**dict(tls), "certificate": tls.certificate}),
            advertised_amqp=words(self.advertised_amqp),
            worker_authorities=self.worker_authorities,
            node=NodeOptions(
                name=self.name,
                group_bytes_max=self.journal.group_bytes_max,
                amqp10_product=self.amqp10.product,
                **_plain(self.limits),
            ),
            journal=JournalOptions(**_plain(self.journal)),
            alarms=AlarmOptions(**_plain(self.alarms)),
            stop_grace_s=self.stop_grace_s,
            cluster=self._cluster_options(),
            default_user=self.default_user,
            default_vhost=self.default_vhost,
            default_password=self._first_password(),
            drain_ends_at_start=self.drain_ends_at_start,
            definitions=self._definitions(),
            pools_file=self._pools_file,
        )


def _check_proxies(proxies: tuple[str, ...]) -> None:
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy, strict=False)
        except ValueError:
            raise ValueError(f"http_proxies: '{proxy}' is no address and no network: 10.0.0.1 or 10.0.0.0/24") from None


def _check_tokens(wanted: OAuth2Settings) -> None:
    if not wanted.resource_server_id:
        return
    if (wanted.keys_file is None) == (not wanted.keys_url):
        raise ValueError("oauth2.keys_file: give either keys_file or keys_url: without keys no token can be verified")
    unknown = [name for name in wanted.algorithms if name not in ALGORITHMS]
    if unknown or not wanted.algorithms:
        raise ValueError(f"oauth2.algorithms: '{', '.join(unknown)}' cannot be allowed: use {', '.join(ALGORITHMS)}")
    if not is_there("jwt"):
        raise ValueError(wanting("oauth2.resource_server_id", "PyJWT", "oauth2"))
    if wanted.keys_url:
        from clusterbroker.broker.oauth2.tokens import check_url

        try:
            check_url(wanted.keys_url)
        except ValueError as error:
            raise ValueError(f"oauth2.keys_url: {error}") from None


def _secret_of(setting: str, file: Path) -> str:
    """What is in a file that nobody else may read, without the end of its line. Raises ConfigError."""
    try:
        with open(file, encoding="utf-8") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read().rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{setting}: {file}: {error.strerror}: name a file that the node can read") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {file}: not UTF-8: write the password as text") from error
    if mode & 0o007:
        raise ConfigError(f"{setting}: {file} is open to every user (mode {mode:04o}): chmod 600 {file}")
    if not text:
        raise ConfigError(f"{setting}: {file} is empty: write the password there")
    return text


def _plain(section: BaseModel) -> dict[str, Any]:
    return {name: int(value) if isinstance(value, ByteSize) else value for name, value in section}


def load(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> NodeConfig:
    """The configuration from flags (dotted names: "log.level"), environment, file and defaults.

    Raises ConfigError.
    """
    where = {"flags": _nested(flags or {}), "file": _read(file) if file is not None else {}}
    pools = where["file"].pop("pools", None)
    declared = None
    if pools is not None:
        try:
            declared = BootDefinitions.of_sections(templates(pools), str(file))
        except (BadTemplate, BadDefinitions) as error:
            raise ConfigError(f"{error} ({file})") from None
    _reject_unknown_environment()
    # the environment stands between the two, so the model is asked for it first and gets both around it
    try:
        environment = _environment()
        config = NodeConfig(**_over(where["flags"], _over(environment, where["file"])))
    except ValidationError as error:
        raise ConfigError(_one_line(error, where["flags"], environment, file)) from None
    if pools and file is not None:
        config._pools_file, config._pools = file.absolute(), declared
    return config


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        with open(file, "rb") as opened:
            read = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}: name a TOML file that can be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: not TOML: {error}") from error
    for name, field in fields().items():
        value = _value_at(read, name.split("."))
        if isinstance(value, bool) and field.annotation is not bool:
            # variables and flags are texts, so the model takes whatever looks right; of numbers a file says better
            raise ConfigError(f"{name} ({file}): input should not be true or false")
    return read


def _environment() -> dict[str, Any]:
    from pydantic_settings import EnvSettingsSource
    from pydantic_settings.exceptions import SettingsError

    source = EnvSettingsSource(NodeConfig)
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from error


def _reject_unknown_environment() -> None:
    known = {ENVIRONMENT_PREFIX + name.upper() for name in settings()}
    for name in os.environ:
        upper = name.upper().replace("__", ".")
        if upper.startswith(ENVIRONMENT_PREFIX) and upper not in known and "." in upper:
            raise ConfigError(f"environment {name}: there is no such setting: see `clusterbroker settings`")


def unread_variables() -> list[str]:
    """Variables with our prefix that nothing reads, each with what may have been meant. They end no start, for what
    makes a process's environment adds such."""
    known = {name.upper().replace(".", "__") for name in settings()} | COMMANDS_READ
    unread = []
    for name, value in sorted(os.environ.items()):
        upper = name.upper()
        last = upper.removeprefix(ENVIRONMENT_PREFIX)
        if last == upper or last in known or _SERVICE_LINK.fullmatch(f"{upper}={value}"):
            continue
        near = get_close_matches(last, known, 1)
        unread.append(f"{name} is no setting" + (f"; is it {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""))
    return unread


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        if value is not None:
            *sections, last = name.split(".")
            place = nested
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
    return nested


def _over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(lower)
    for name, value in upper.items():
        below = joined.get(name)
        joined[name] = _over(value, below) if isinstance(value, dict) and isinstance(below, dict) else value
    return joined


def _one_line(
    error: ValidationError, flags: Mapping[str, Any], environment: Mapping[str, Any], file: Path | None
) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"] if not isinstance(part, int)]
    name = ".".join(place)
    text = re.sub(r"^Value error, ", "", first["msg"])
    if first["type"] == "extra_forbidden":
        text = "there is no such setting: see `clusterbroker settings`" + _meant(name)
    elif first["type"] == "model_type":
        text = f"it is a section: write [{name}], and its settings below"
    if not name:
        name, _, text = text.partition(": ")
        place = name.split(".")
    source = "default"
    for layer, said in ((flags, "flag"), (environment, "environment")):
        if _holds(layer, place):
            source = said
            break
    else:
        if file is not None:
            source = str(file)
    more = len(error.errors()) - 1
    return f"{name} ({source}): {text[:1].lower()}{text[1:]}" + (f" (and {more} more)" if more else "")


def _meant(name: str) -> str:
    """What somebody may have meant by a name that there is not: the nearest one, or one of another section."""
    known = list(fields())
    last = name.rpartition(".")[2]
    near = [other for other in known if other.rpartition(".")[2] == last] or get_close_matches(name, known, 1, 0.72)
    return f"; is it {near[0]}?" if near else ""


def _holds(layer: Mapping[str, Any], place: list[str]) -> bool:
    return _value_at(layer, place, _NOTHING) is not _NOTHING


_NOTHING: Any = object()


def _value_at(layer: Mapping[str, Any], place: list[str], default: Any = None) -> Any:
    found: Any = layer
    for part in place:
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def fields() -> dict[str, FieldInfo]:
    """All settings by dotted name."""
    found: dict[str, FieldInfo] = {}
    for name, field in NodeConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= {f"{name}.{inner}": setting for inner, setting in section.model_fields.items()}
        else:
            found[name] = field
    return found


def settings() -> dict[str, tuple[Any, str]]:
    """All settings by dotted name: default and description."""
    return {name: (field.default, field.description or "") for name, field in fields().items()}


def sections() -> dict[str, str]:
    """Names and descriptions of the sections."""
    return {
        name: (field.annotation.__doc__ or "").strip()
        for name, field in NodeConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
