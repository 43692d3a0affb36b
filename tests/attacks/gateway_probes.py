"""What a confined server tries at the gateways of its user. Runs without anything but Python."""

import base64
import json
import os
import socket
import sys
from urllib.parse import urlsplit

PATIENCE = 20


def ask(line, data):
    line.settimeout(PATIENCE)
    line.sendall(data)
    answer = b""
    while part := line.recv(65536):
        answer += part
    return answer.decode("latin-1")


def request(host, port):
    return f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()


def through_network(family, address):
    def attempt():
        with socket.socket(family) as line:
            line.settimeout(PATIENCE)
            line.connect(address)
            return ask(line, request(*address[:2]))

    return attempt


def through_proxy(host, port):
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    word = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    name = f"[{host}]" if ":" in host else host

    def attempt():
        with socket.create_connection((proxy.hostname, proxy.port), PATIENCE) as line:
            opened = f"CONNECT {name}:{port} HTTP/1.1\r\nProxy-Authorization: Basic {word}\r\n\r\n"
            line.sendall(opened.encode())
            answer = line.recv(65536).decode()
            if " 200 " not in answer.partition("\r\n")[0] + " ":
                return answer
            return ask(line, request(host, port))

    return attempt


def by_proxy_request(host, port):
    """The same without a tunnel."""
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    word = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    name = f"[{host}]" if ":" in host else host
    head = (
        f"GET http://{name}:{port}/metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Proxy-Authorization: Basic {word}\r\n\r\n"
    )

    def attempt():
        with socket.create_connection((proxy.hostname, proxy.port), PATIENCE) as line:
            return ask(line, head.encode())

    return attempt


def through_control(path, proof):
    def attempt():
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(PATIENCE)
            line.connect(path)
            head = b"POST /control/about HTTP/1.1\r\nauthorization: Bearer %b\r\n" % proof
            return ask(line, head + b"content-length: 2\r\n\r\n{}")

    return attempt


def read(path):
    def attempt():
        with open(path, "rb") as file:  # noqa: PTH123 - `pathlib` takes long to import
            return f"read {file.read().hex()}"

    return attempt


def attempts(world):
    port = world["port"]
    for host in world["hosts"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        yield f"network {host}", through_network(family, (host, port))
        if "HTTP_PROXY" in os.environ:
            yield f"tunnel {host}", through_proxy(host, port)
            yield f"request {host}", by_proxy_request(host, port)
    yield "control", through_control(world["control"], b"0" * 64)
    yield "secret", read(world["secret"])


def main():
    world = json.loads(sys.argv[1])
    outcomes = {}
    for name, attempt in attempts(world):
        try:
            outcomes[name] = attempt()
        except Exception as exc:  # noqa: BLE001 - whatever stops it
            outcomes[name] = f"{type(exc).__name__}: {exc}"
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main()
