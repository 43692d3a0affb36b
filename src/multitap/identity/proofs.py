"""Checks that a token is used by the holder of the key that it is bound to (DPoP, RFC 9449)."""

import hashlib
import hmac
import time
from collections.abc import Mapping

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from yarl import URL

from multitap.config.documents import is_table
from multitap.identity.access_tokens import TokenRefused, check_signature, read_jwt
from multitap.trust.single_use import as_text

ALGORITHMS = ("ES256", "ES384", "ES512", "RS256", "PS256", "EdDSA", "Ed25519")
"""The algorithms of proofs."""
WINDOW = 300.0
"""Seconds that the moment of a proof may differ from ours."""
USED = "the DPoP proof was used before"
_MOST_REMEMBERED = 100_000  # beyond that, proofs are refused: a forgotten one could come again
_KINDS: Mapping[str, type[ECKey] | type[RSAKey] | type[OKPKey]] = {
    "EC": ECKey,
    "RSA": RSAKey,
    "OKP": OKPKey,
}


class ProofRefused(TokenRefused):
    """A proof is missing or not valid."""


class Proofs:
    """Checks proofs, and remembers those that were used."""

    def __init__(self) -> None:
        self._used: dict[bytes, float] = {}

    def check(
        self, proof: bytes | None, token: bytes, thumbprint: str, method: bytes, url: str
    ) -> bytes:
        """Check the proof that came with a token; returns a digest of its identity.

        Args:
            thumbprint: The key that the token is bound to.
            url: Its URL as the client sees it, without its query.

        Raises:
            ProofRefused: The proof is not one for this request.
        """
        if proof is None:
            raise ProofRefused("the token needs a DPoP proof with every request")
        try:
            jwt = read_jwt(proof.decode("ascii"))
        except (TokenRefused, UnicodeDecodeError):
            raise ProofRefused("the DPoP proof cannot be read") from None
        header, claims = jwt.header, jwt.claims
        key_table, algorithm = header.get("jwk"), header.get("alg")
        if header.get("typ") != "dpop+jwt" or algorithm not in ALGORITHMS:
            raise ProofRefused("the DPoP proof has another type or algorithm")
        if not is_table(key_table) or "d" in key_table or key_table.get("kty") not in _KINDS:
            raise ProofRefused("the DPoP proof has no public key")
        try:
            key = _KINDS[key_table["kty"]].import_key({**key_table})
            proven = key.thumbprint()
        except (JoseError, ValueError, TypeError, KeyError):
            raise ProofRefused("the key of the DPoP proof cannot be used") from None
        if not hmac.compare_digest(proven, thumbprint):
            raise ProofRefused("the DPoP proof has another key than the token")
        try:
            check_signature(proof.decode("ascii"), key, algorithm)
        except TokenRefused:
            raise ProofRefused("the signature of the DPoP proof is not valid") from None
        if claims.get("htm") != method.decode("latin-1") or not _same(claims.get("htu"), url):
            raise ProofRefused("the DPoP proof is for another request")
        if claims.get("ath") != as_text(hashlib.sha256(token).digest()):
            raise ProofRefused("the DPoP proof is for another token")
        # last: what is not valid in all else is not remembered, so strangers cannot fill the memory
        return self._note(claims.get("iat"), claims.get("jti"), proven)

    def _note(self, issued: object, proof_id: object, thumbprint: str) -> bytes:
        """Check that a proof is recent and used for the first time."""
        now = time.time()
        if not isinstance(issued, int | float) or not abs(now - issued) <= WINDOW:
            raise ProofRefused("the DPoP proof is too old, or its clock is wrong")
        if not isinstance(proof_id, str) or not proof_id:
            raise ProofRefused("the DPoP proof has no `jti`")
        # with its key: two clients may choose the same `jti`
        mark = hashlib.sha256(f"{thumbprint} {proof_id}".encode()).digest()
        if mark in self._used:
            raise ProofRefused(USED)
        if len(self._used) >= _MOST_REMEMBERED:
            self._used = {mark: until for mark, until in self._used.items() if until >= now}
            if len(self._used) >= _MOST_REMEMBERED:
                raise ProofRefused("too many DPoP proofs at a time")
        self._used[mark] = issued + WINDOW  # later, its age refuses it
        return mark


def _same(claimed: object, url: str) -> bool:
    if not isinstance(claimed, str):
        return False
    try:
        # neither counts (RFC 9449, 4.3)
        return URL(claimed).with_query(None).with_fragment(None) == URL(url)
    except ValueError:
        return False
