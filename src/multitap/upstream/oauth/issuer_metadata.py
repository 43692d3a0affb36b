"""Metadata of servers and authorization servers: RFC 9728, RFC 8414, OIDC."""

from typing import TypeVar

import msgspec


class ResourceMetadata(msgspec.Struct, frozen=True):
    """The protected resource metadata of a server (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool | None = None

    @property
    def takes_proofs(self) -> bool:
        required = self.dpop_bound_access_tokens_required
        return bool(required or self.dpop_signing_alg_values_supported)


class IssuerMetadata(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


_Metadata = TypeVar("_Metadata", ResourceMetadata, IssuerMetadata)


def parse_metadata(text: bytes, kind: type[_Metadata]) -> _Metadata | None:
    """Parse metadata; None if they are not valid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
