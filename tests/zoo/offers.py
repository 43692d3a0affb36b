"""The resources, prompts and completions of every server here."""

import os

BLOB = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6"
    "kgAAAABJRU5ErkJggg=="
)
"""One red pixel, as a PNG in base64."""

RESOURCES = (
    {"uri": "zoo://text", "name": "text", "mimeType": "text/plain"},
    {"uri": "zoo://blob", "name": "blob", "mimeType": "image/png"},
)
TEMPLATES = ({"uriTemplate": "zoo://item/{id}", "name": "item", "mimeType": "text/plain"},)
PROMPTS = (
    {
        "name": "greet",
        "description": "Greets somebody",
        "arguments": [{"name": "name", "required": True}],
    },
    {"name": "plain", "description": "Takes no arguments"},
)
NAMES = ("Ada", "Adele", "Alan", "Grace")
PID = "pid"
"""The item that tells the process id."""
NEVER = "never"
"""The item that is not read, and the name of whom is not greeted, however long a client waits."""


def contents(uri):
    """What a resource holds, or nothing where there is no such resource."""
    if uri == f"zoo://item/{PID}":
        return {"uri": uri, "mimeType": "text/plain", "text": str(os.getpid())}
    if uri == "zoo://text":
        return {"uri": uri, "mimeType": "text/plain", "text": "the text"}
    if uri == "zoo://blob":
        return {"uri": uri, "mimeType": "image/png", "blob": BLOB}
    if isinstance(uri, str) and uri.startswith("zoo://item/"):
        return {"uri": uri, "mimeType": "text/plain", "text": uri.removeprefix("zoo://item/")}
    return None


def messages(name, arguments):
    """A prompt's messages, or nothing where there is no such prompt."""
    if name == "greet":
        return [_said(f"Hello, {arguments.get('name')}")]
    return [_said("Hello")] if name == "plain" else None


def complete(start):
    return [name for name in NAMES if name.lower().startswith(start.lower())]


def _said(text):
    return {"role": "user", "content": {"type": "text", "text": text}}
