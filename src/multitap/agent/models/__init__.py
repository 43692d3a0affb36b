"""One interface to the language models of all vendors.

In: a model's configuration, and a conversation with the tools it may use. Out: a `Reply`, streamed
as text, or an error that says what the provider refused. `open_model` chooses the protocol; each
protocol is one file. The formats of tools for each provider are in `multitap.tools.providers`. It
must not know what a tool does, and never runs one.
"""

from multitap.agent.models.language_model import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
    open_model,
)

__all__ = [
    "Model",
    "ModelRequest",
    "Reply",
    "StopReason",
    "TextDelta",
    "Usage",
    "open_model",
]
