"""What a node is told of the authority whose tokens it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""All that may ever be allowed: signatures that need a private key to make. Neither `none`, nor those with a shared
secret (HS256): a public key that is taken for such a secret would let everybody sign."""


@dataclass(frozen=True, slots=True)
class OAuth2Options:
    """None of this is a secret."""

    resource_server_id: str
    """Who this broker is for the authority: must be among a token's audience, and begins the scopes that count."""

    keys_file: Path | None = None
    """JSON Web Key Set with the authority's public keys."""

    keys_url: str = ""
    """Where the authority publishes it, in the place of `keys_file`."""

    keys_authorities: Path | None = None
    """PEM file with the authorities that sign the certificate of `keys_url`; None: those of the system."""

    issuer: str = ""
    """Must be the issuer of a token; empty: whoever has a key of the set."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Signatures that are accepted."""

    scope_prefix: str = ""
    """What the scopes begin with that mean this broker; empty: the resource server's id and a dot."""

    scope_claims: tuple[str, ...] = ("scope",)
    """Claims that hold scopes; a dot leads into an object."""

    username_claims: tuple[str, ...] = ("sub", "client_id")
    """The first of these that a token has is the user's name."""

    leeway_s: int = 5
    """How far the clocks of the authority and of this node may differ."""

    @property
    def prefix(self) -> str:
        """What counting scopes begin with."""
        return self.scope_prefix or f"{self.resource_server_id}."
