"""Who asks with an OAuth 2 token: its tags and vhosts are those of its scopes, whatever users the broker has."""

from __future__ import annotations

from broker.oauth2.scopes import Grants
from cluster.view import ClusterView

from .errors import Refused
from .rights import Seer


class TokenSeer(Seer):
    """For one request."""

    __slots__ = ("_grants",)

    def __init__(self, map_: ClusterView, name: str, grants: Grants) -> None:
        super().__init__(map_, name, grants.tags)
        self._grants = grants

    def enters(self, vhost: str) -> bool:
        """Whether a scope names the vhost."""
        return self._grants.enters(vhost)

    def amqp_user(self, _vhost: str) -> str:
        """Refused (403): AMQP is spoken as a user of the broker, whose permissions are not the token's."""
        raise Refused(
            403,
            "not_authorised",
            "what is done by AMQP (declare, bind, publish, get, purge) needs a user of the broker",
        )
