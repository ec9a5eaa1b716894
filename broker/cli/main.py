"""The command `clusterbroker`. What its exit codes mean: `broker.cli.exit_codes`.

Each command imports what it needs when it runs: a start should not pay for tables and colours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.tree import NODE, Tree

app = typer.Typer(
    name="clusterbroker",
    cls=Tree,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A replicated AMQP 0-9-1 broker: nodes, clusters, queues, journals.",
)


@app.command(rich_help_panel=NODE)
def start(
    name: Annotated[str | None, typer.Option(help="The node's name. [node]")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The data directory. [clusterbroker-data]")] = None,
    amqp: Annotated[str | None, typer.Option(help="HOST:PORT of AMQP clients. [127.0.0.1:5672]")] = None,
    cluster: Annotated[str | None, typer.Option(help="HOST:PORT for other nodes, TCP and UDP.")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT of the management API.")] = None,
    https: Annotated[str | None, typer.Option(help="HOST:PORT of the management API inside TLS.")] = None,
    peers: Annotated[str | None, typer.Option(help="NAME@HOST:PORT,... of all founding members.")] = None,
    found: Annotated[
        bool | None, typer.Option("--found", help="With --cluster alone: an empty directory founds a new cluster.")
    ] = None,
    join: Annotated[
        bool | None, typer.Option("--join", help="Not among --peers: an empty directory joins their cluster.")
    ] = None,
    secret_file: Annotated[Path | None, typer.Option(help="The join secret. [~/.config/clusterbroker/secret]")] = None,
    definitions_file: Annotated[Path | None, typer.Option(help="Definitions to import: JSON, RabbitMQ's too.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; flags and environment precede it.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error, critical. [info]")] = None,
) -> None:
    """Run a node until SIGTERM or SIGINT.

    Prints one line per listener when it accepts (`amqp 127.0.0.1:5672`), and `ready` last; with a JSON log one object.
    """
    from clusterbroker.broker.cli.start import run

    flags = {
        "name": name,
        "data_dir": None if data_dir is None else str(data_dir),
        "amqp": amqp,
        "cluster": cluster,
        "http": http,
        "https": https,
        "peers": peers,
        "found": found,
        "join": join,
        "secret_file": None if secret_file is None else str(secret_file),
        "definitions_file": None if definitions_file is None else str(definitions_file),
        "log.level": log_level,
    }
    raise typer.Exit(run(flags, config))


@app.command(rich_help_panel=NODE)
def settings(
    toml: Annotated[bool, typer.Option("--toml", help="As a file for --config, with allowed values.")] = False,
) -> None:
    """Every setting with its default. Precedence: flags, CLUSTERBROKER_... variables, file."""
    from clusterbroker.broker.config import settings

    if toml:
        from clusterbroker.broker.cli.sample import sample

        typer.echo(sample(), nl=False)
        return

    for name, (default, description) in settings().items():
        variable = "CLUSTERBROKER_" + name.upper().replace(".", "__")
        typer.echo(f"{name} = {_shown(default)}\n    {description}\n    {variable}")


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The version of this program.")
    ] = False,
) -> None:
    pass


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return '""' if value in ("", None) else str(value)


@app.command(rich_help_panel=NODE)
def version() -> None:
    """The version of this program."""
    from clusterbroker.broker.version import VERSION

    typer.echo(VERSION)


def main() -> None:
    """The program."""
    app()


if __name__ == "__main__":
    main()
