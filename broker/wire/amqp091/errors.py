"""What may go wrong between a client and this node, in AMQP's own numbers.

AMQP 0-9-1 knows two weights of error (specification 1.2 and 4.10). A *soft* error ends one channel: the peer
that noticed it sends ``channel.close`` and the connection lives on. A *hard* error means that the two peers no
longer agree about the conversation itself, so the connection ends with ``connection.close``. The code alone
decides the weight:

    AmqpError
    ├── ChannelError       soft, closes the channel:    311 312 313 403 404 405 406
    └── ConnectionFault    hard, closes the connection: 320 402 501 502 503 504 505 506 530 540 541

Every error carries a reply code, an explanation, and the class and method that caused it (0 and 0 when no method
is to blame). The reply text that a client reads is ``NAME - explanation``, as RabbitMQ writes it.

Raise them through the small constructors below, ``raise not_found("no queue 'q' in vhost '/'")``: they choose the
right class for the code, so that no call site can close a connection by mistake.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

REPLY_TEXT_BYTES_MAX: Final = 255
"""A reply text travels as a short string, whose length is one octet (specification 4.2.5.3)."""


class ReplyCode(IntEnum):
    """Every reply code of AMQP 0-9-1 (specification 1.2, domain ``reply-code``)."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT_CODES: Final = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
"""Codes that close a channel (``soft-error`` in the specification)."""

HARD_CODES: Final = frozenset(ReplyCode) - SOFT_CODES - {ReplyCode.REPLY_SUCCESS}
"""Codes that close a connection (``hard-error`` in the specification)."""


class AmqpError(Exception):
    """An AMQP exception: a reply code, an explanation, and the method to blame.

    ``class_id`` and ``method_id`` go into the close method as they are ("when the close is provoked by a method
    exception, this is the class of the method", ``connection.close``); 0 and 0 say that no method caused it.
    """

    CODES: frozenset[ReplyCode] = frozenset(ReplyCode)

    def __init__(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        assert code in self.CODES, f"reply code {code} does not belong to {type(self).__name__}"
        super().__init__(code, text, class_id, method_id)
        self.code = ReplyCode(code)
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        """``NAME - explanation``, at most 255 bytes of UTF-8 and always valid UTF-8.

        A longer text keeps 252 bytes and ends in three dots, as RabbitMQ's does; no character is cut in two.
        """
        text = f"{self.code.name} - {self.text}" if self.text else self.code.name
        raw = text.encode("utf-8", "replace")
        if len(raw) <= REPLY_TEXT_BYTES_MAX:
            return raw.decode("utf-8")
        return raw[: REPLY_TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."

    @property
    def line(self) -> tuple[str, int | str, str]:
        """As the node's log has it (`broker.node.log.Fault`). 320 is our own doing: an operator closes connections, or
        the node stops."""
        level = {ReplyCode.INTERNAL_ERROR: "error", ReplyCode.CONNECTION_FORCED: "info"}.get(self.code, "warning")
        return level, int(self.code), self.reply_text

    def at(self, class_id: int, method_id: int) -> Self:
        """The same error, blaming this method unless one is blamed already. Returns ``self``."""
        if not self.class_id:
            self.class_id, self.method_id = class_id, method_id
        return self

    def __str__(self) -> str:
        return f"{int(self.code)} {self.reply_text}"


class ChannelError(AmqpError):
    """A soft error: the channel closes, the connection lives."""

    CODES = SOFT_CODES


class ConnectionFault(AmqpError):
    """A hard error: the connection closes."""

    CODES = HARD_CODES


def content_too_large(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """311: a message is larger than its receiver takes."""
    return ChannelError(ReplyCode.CONTENT_TOO_LARGE, text, class_id, method_id)


def no_route(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """312: no queue wants the message; also the code inside ``basic.return``."""
    return ChannelError(ReplyCode.NO_ROUTE, text, class_id, method_id)


def no_consumers(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """313: nobody can take the message at once (``immediate``)."""
    return ChannelError(ReplyCode.NO_CONSUMERS, text, class_id, method_id)


def access_refused(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """403: no permission, a reserved name, or an exclusive consumer is present."""
    return ChannelError(ReplyCode.ACCESS_REFUSED, text, class_id, method_id)


def not_found(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """404: no such queue or exchange."""
    return ChannelError(ReplyCode.NOT_FOUND, text, class_id, method_id)


def resource_locked(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """405: the queue is exclusive to another connection."""
    return ChannelError(ReplyCode.RESOURCE_LOCKED, text, class_id, method_id)


def precondition_failed(text: str, class_id: int = 0, method_id: int = 0) -> ChannelError:
    """406: inequivalent redeclaration, unknown delivery tag, bad argument, delete of something in use."""
    return ChannelError(ReplyCode.PRECONDITION_FAILED, text, class_id, method_id)


def connection_forced(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """320: an operator or a leaving node closes the connection; the client may reconnect."""
    return ConnectionFault(ReplyCode.CONNECTION_FORCED, text, class_id, method_id)


def invalid_path(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """402: an unknown virtual host, in the words of the specification (RabbitMQ answers 530)."""
    return ConnectionFault(ReplyCode.INVALID_PATH, text, class_id, method_id)


def frame_error(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """501: a frame too large, or without its end octet: the byte stream can no longer be read."""
    return ConnectionFault(ReplyCode.FRAME_ERROR, text, class_id, method_id)


def syntax_error(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """502: a frame whose content breaks the grammar."""
    return ConnectionFault(ReplyCode.SYNTAX_ERROR, text, class_id, method_id)


def command_invalid(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """503: an unknown method, or one that makes no sense now."""
    return ConnectionFault(ReplyCode.COMMAND_INVALID, text, class_id, method_id)


def channel_error(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """504: work on a channel that is not open, or opening one that is. A *hard* error in spite of its name."""
    return ConnectionFault(ReplyCode.CHANNEL_ERROR, text, class_id, method_id)


def unexpected_frame(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """505: content without its method, or a frame in the middle of another's content."""
    return ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text, class_id, method_id)


def resource_error(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """506: the node has not enough of something."""
    return ConnectionFault(ReplyCode.RESOURCE_ERROR, text, class_id, method_id)


def not_allowed(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """530: against the rules or limits of this node (virtual host, channel maximum, consumer tag in use)."""
    return ConnectionFault(ReplyCode.NOT_ALLOWED, text, class_id, method_id)


def not_implemented(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """540: specified, but not offered here (``immediate``, ``prefetch_size``)."""
    return ConnectionFault(ReplyCode.NOT_IMPLEMENTED, text, class_id, method_id)


def internal_error(text: str, class_id: int = 0, method_id: int = 0) -> ConnectionFault:
    """541: a mistake of ours."""
    return ConnectionFault(ReplyCode.INTERNAL_ERROR, text, class_id, method_id)
