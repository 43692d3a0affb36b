"""What a token of an identity provider costs: verified for the first time, and remembered.

`python -m bench.access_tokens` prints CPU time per request, compared within one run.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from joserfc import jwt
from joserfc.jwk import RSAKey

from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.http.server.peer import Peer
from multitap.http.server.request import RequestHead
from multitap.identity.issuer import usable_keys
from multitap.identity.people import People
from multitap.identity.verifier import Verifier

ISSUER, PUBLIC = "https://login.example.com", "https://tap.example.com"
ROUNDS = 20_000


def main() -> None:
    """Print the figures."""
    key = RSAKey.generate_key(2048, {"kid": "first"})
    access = AccessSettings(
        oidc={"corp": OidcIssuer(issuer=ISSUER)}, rules=(AccessRule(name="dev", groups=("dev",)),)
    )
    with TemporaryDirectory() as folder:
        server = ResourceServer(
            PUBLIC,
            lambda: access,
            dict,
            make_verifier=lambda settings: Verifier(settings, People(Path(folder))),
        )
        keys = server.verifier.issuers[ISSUER].keys
        keys._keys, keys._fetched = usable_keys(key_set(key)), keys._clock()  # noqa: SLF001 - no network
        head = request(token(key))
        decide = server.verifier.decide_now
        audiences = (server.url_of(b"/mcp"),)
        first = measure(lambda: decide(bearer(head), b"/x", audiences) and forget(server), 500)
        again = measure(lambda: server.admit_now(head), ROUNDS)
        lookup = measure(lambda: server.verifier.remembered(bearer(head), b"/mcp"), ROUNDS)
        plain = Access("127.0.0.1")
        without = measure(lambda: plain.decide(head_without.headers, head_without.peer), ROUNDS)
    print(f"verified       {first:7.2f} µs")
    print(f"remembered     {again:7.2f} µs, of which {lookup:.2f} µs find the decision")
    print(f"without tokens {without:7.2f} µs")


def forget(server: ResourceServer) -> None:
    server.verifier._remembered.clear()  # noqa: SLF001 - each round is the first one


def key_set(key: RSAKey) -> dict[str, object]:
    return {"keys": [key.as_dict(private=False)]}


def token(key: RSAKey) -> str:
    now = int(time.time())
    claims = {
        "iss": ISSUER, "aud": f"{PUBLIC}/mcp", "sub": "alice", "client_id": "claude",
        "scope": "tools", "groups": ["dev"], "iat": now, "exp": now + 600, "jti": "x" * 20,
    }  # fmt: skip
    return jwt.encode({"alg": "RS256", "typ": "at+jwt", "kid": "first"}, claims, key)


def request(text: str) -> RequestHead:
    pairs = [(b"host", b"tap.example.com"), (b"authorization", f"Bearer {text}".encode())]
    return RequestHead(b"POST", b"/mcp", pairs, peer=Peer())


def bearer(head: RequestHead) -> bytes:
    return head.headers[b"authorization"].partition(b" ")[2]


def measure(work: Callable[[], object], rounds: int) -> float:
    """CPU time of one round in microseconds, the best of five runs."""
    runs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            work()
        runs.append((time.process_time() - began) / rounds * 1e6)
    return min(runs)


head_without = RequestHead(b"POST", b"/mcp", [(b"host", b"127.0.0.1")], peer=Peer())

if __name__ == "__main__":
    main()
