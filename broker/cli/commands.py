"""What commands have in common: how they reach a node, how they show what they got, how they end.

    @listing(app, "list", TABLE)     a function that gives documents becomes a command that shows a table of them
    @showing(app, "show", TABLE)     one that gives one document: a line for each field
    @viewing(app, "watch", lines)    one that gives a document, which is drawn again and again
    @operation(app, "declare")       one that does something: it may give a line that says what it did
    listed(app, "list", TABLE, path, about), shown(...)   a list or a document of the management API as it is

What is asked for, a number too, is `listing` or `showing`: they have --json for programs. The line of an `operation` is
a sentence for people, with its numbers `counted` ("moved 3 queues"), without --json: programs have the exit code.

Each function's first parameter is the Target; the others are its own arguments and options. The options of reaching and
showing are added here, so that they are the same everywhere.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from clusterbroker.broker.cli import complete, tables, watching
from clusterbroker.broker.cli.exit_codes import Failed, end
from clusterbroker.broker.cli.parameters import SECONDS, OfUser, OfVhost, Vhost, duration
from clusterbroker.broker.cli.tables import Document, Table, Wish
from clusterbroker.broker.cli.target import Target

F = TypeVar("F", bound=Callable[..., Any])

BY_NAME: Final = Parameter.KEYWORD_ONLY
SEGMENT: Final = re.compile(r"\{(\w+)\}")
"""Of a path: a name."""
WHERE: Final = "Which node"
SHOWN: Final = "What is shown"

REACH: Final[dict[str, Any]] = {
    "data_dir": Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            readable=False,  # who may not read it is told whose it is (`operator_door.unasked`)
            help="Of the node on this machine. [env: CLUSTERBROKER_DATA_DIR; default: clusterbroker-data]",
            rich_help_panel=WHERE,
        ),
    ],
    "url": Annotated[
        str | None,
        typer.Option("--url", help="http://HOST:PORT of any node. [env: CLUSTERBROKER_URL]", rich_help_panel=WHERE),
    ],
    "login": Annotated[
        str | None,
        typer.Option("--user", help="With --url: the user. [env: CLUSTERBROKER_USER]", rich_help_panel=WHERE),
    ],
    "password_file": Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            help="The first line is the password; -: standard input. [env: CLUSTERBROKER_PASSWORD]",
            rich_help_panel=WHERE,
        ),
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="The first line is an OAuth 2 token, in place of a user. [env: CLUSTERBROKER_TOKEN]",
            rich_help_panel=WHERE,
        ),
    ],
    "ca_file": Annotated[
        Path | None,
        typer.Option("--ca-file", help="With https: trusted certificates (PEM).", rich_help_panel=WHERE),
    ],
    "as_user": Annotated[
        str | None,
        typer.Option(
            "--as",
            help="With --data-dir: with the rights of this user.",
            rich_help_panel=WHERE,
            autocompletion=complete.users,
        ),
    ],
}
"""How a node is reached: of all commands."""

JSON: Final[dict[str, Any]] = {
    "as_json": Annotated[bool, typer.Option("--json", help="JSON, on one line.", rich_help_panel=SHOWN)],
}
COLUMNS: Final[dict[str, Any]] = {
    "columns": Annotated[
        str | None,
        typer.Option("--columns", help="Names or dotted fields, with commas.", rich_help_panel=SHOWN),
    ],
    "watch": Annotated[
        float | None,
        duration("Repeat every SECONDS [2].", metavar=f"[{SECONDS}]", rich_help_panel=SHOWN),
    ],
}
LIST: Final[dict[str, Any]] = {
    "filter_": Annotated[
        str | None,
        typer.Option("--filter", help="Part of the name; with * or ? a pattern.", rich_help_panel=SHOWN),
    ],
    "sort": Annotated[
        str | None,
        typer.Option("--sort", help="By this column; descending with a leading -.", rich_help_panel=SHOWN),
    ],
    "limit": Annotated[int | None, typer.Option("--limit", min=1, help="At most this many.", rich_help_panel=SHOWN)],
}
EVERY: Final[dict[str, Any]] = {
    "every": Annotated[float, duration("Drawn again after it.", rich_help_panel=SHOWN)],
}
DEFAULTS: Final[dict[str, Any]] = {"as_json": False, "every": watching.EVERY_S}


class Watchable(TyperCommand):
    """`--watch` may stand without its number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As for any command."""
        return super().parse_args(ctx, watching.normalised(args))


def operation(app: typer.Typer, name: str, *, hidden: bool = False) -> Callable[[F], F]:
    """Registers a function that does something."""

    def register(function: F) -> F:
        def run(reach: Target, given: dict[str, Any]) -> None:
            told = function(reach, **given)
            if told is not None:
                typer.echo(told)

        _register(app, name, function, run, {}, TyperCommand, hidden)
        return function

    return register


def listing(app: typer.Typer, name: str, table: Table, *, hidden: bool = False) -> Callable[[F], F]:
    """Registers a function that gives documents."""

    def register(function: F) -> F:
        def run(reach: Target, given: dict[str, Any]) -> None:
            wish, every_s = _wish(given)
            reach.narrowed = table.query(wish, tables.terminal_width())

            def rows() -> list[Document]:
                return table.rows(function(reach, **given), wish)

            show(table, rows, wish, every_s)

        _register(app, name, function, run, LIST | COLUMNS | JSON, Watchable, hidden)
        return function

    return register


def showing(app: typer.Typer, name: str, table: Table, *, hidden: bool = False) -> Callable[[F], F]:
    """Registers a function that gives one document."""

    def register(function: F) -> F:
        def run(reach: Target, given: dict[str, Any]) -> None:
            wish, every_s = _wish(given)
            show_document(table, lambda: function(reach, **given), wish, every_s)

        _register(app, name, function, run, COLUMNS | JSON, Watchable, hidden)
        return function

    return register


def viewing(app: typer.Typer, name: str, lines: Callable[[Document, int], list[str]]) -> Callable[[F], F]:
    """Registers a function that gives a document, which is drawn again and again. `lines`: it, so wide at most."""

    def register(function: F) -> F:
        def run(reach: Target, given: dict[str, Any]) -> None:
            every_s, as_json = given.pop("every"), given.pop("as_json")
            if as_json:
                _told(lambda: tables.encoded(function(reach, **given)), every_s)
            else:
                _shown(lambda: lines(function(reach, **given), tables.terminal_width()), every_s, head=False)

        _register(app, name, function, run, EVERY | JSON, TyperCommand, hidden=False)
        return function

    return register


def listed(app: typer.Typer, name: str, table: Table, path: str, about: str, of: Any = OfVhost) -> None:
    """Registers a list of the management API as it is. `of`: the option that narrows it down to a vhost or user, whose
    name stands behind the path; None: there is none."""
    option = "user" if of is OfUser else "vhost"

    def documents(reach: Target, **given: Any) -> list[Document]:
        return reach.api.documents(path, of=given.get(option), query=reach.narrowed)

    _takes(documents, about, {} if of is None else {option: Parameter(option, BY_NAME, default=None, annotation=of)})
    listing(app, name, table)(documents)


def shown(app: typer.Typer, name: str, table: Table, path: str, about: str, /, **names: Any) -> None:
    """Registers a document of the management API as it is. `names`: of the path's segments, and their parameters."""

    def document(reach: Target, **given: Any) -> Document:
        return reach.api.document(SEGMENT.sub("{}", path), *(given[name] for name in SEGMENT.findall(path)))

    parameters = {word: Parameter(word, BY_NAME, annotation=annotation) for word, annotation in names.items()}
    if "vhost" in SEGMENT.findall(path) and "vhost" not in names:
        parameters["vhost"] = Parameter("vhost", BY_NAME, default="/", annotation=Vhost)
    _takes(document, about, parameters)
    showing(app, name, table)(document)


def _takes(function: Callable[..., Any], about: str, parameters: dict[str, Parameter]) -> None:
    function.__doc__ = about
    reach = Parameter("reach", Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([reach, *parameters.values()])  # type: ignore[attr-defined]


def _wish(given: dict[str, Any]) -> tuple[Wish, float | None]:
    """Takes the options of showing out of what was given."""
    columns = tuple(name.strip() for name in (given.pop("columns") or "").split(",") if name.strip())
    wish = Wish(
        columns=columns,
        sort=given.pop("sort", None) or "",
        filter=given.pop("filter_", None) or "",
        limit=given.pop("limit", None),
        as_json=given.pop("as_json"),
    )
    return wish, given.pop("watch")


def show(table: Table, rows: Callable[[], Sequence[Document]], wish: Wish, every_s: float | None = None) -> None:
    """A table, or JSON, once or again and again. Failed."""
    if wish.as_json:
        _told(lambda: tables.encoded(table.json(rows(), wish)), every_s)
    else:
        _shown(lambda: tables.lines(table, rows(), wish, tables.terminal_width()), every_s, head=True)


def show_document(table: Table, document: Callable[[], Document], wish: Wish, every_s: float | None = None) -> None:
    """A line for each field, or JSON, once or again and again. Failed."""
    if wish.as_json:
        _told(lambda: tables.encoded(table.json([document()], wish)[0]), every_s)
    else:
        _shown(lambda: tables.lines_of(table, document(), wish), every_s, head=False)


def _told(line: Callable[[], str], every_s: float | None) -> None:
    if every_s is None:
        typer.echo(line())
    else:
        watching.watch_lines(line, every_s)


def _shown(lines: Callable[[], list[str]], every_s: float | None, head: bool) -> None:
    if every_s is None:
        tables.printed(lines(), head)
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        watching.watch(lambda: tables.picture(lines(), console.height - 1, head), every_s, console)
    else:
        watching.watch_lines(lambda: "\n".join([*lines(), ""]), every_s)


def _register(
    app: typer.Typer,
    name: str,
    function: Callable[..., Any],
    run: Callable[[Target, dict[str, Any]], None],
    options: dict[str, Any],
    kind: type[TyperCommand],
    hidden: bool,
) -> None:
    """Adds the command: the function's own parameters, then `options`, then those of reaching."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    added = [
        Parameter(word, Parameter.KEYWORD_ONLY, default=DEFAULTS.get(word), annotation=annotation)
        for word, annotation in (options | REACH).items()
    ]
    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own] + added

    def command(**given: Any) -> None:
        at = {word: given.pop(word) for word in REACH}
        at["user"] = at.pop("login")
        try:
            with closing(Target(**at)) as reach:
                run(reach, given)
        except Failed as failed:
            end(failed)
        except BrokenPipeError:
            sys.stderr.close()  # who read the output has seen enough
            raise typer.Exit(0) from None

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    app.command(name, cls=kind, hidden=hidden)(command)
