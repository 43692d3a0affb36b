"""Language models of any maker, asked in one way.

In: the configuration of a model, and a conversation with the tools it may use. Out: a `Reply`, its
text as it comes, or an error that says what the provider refused. `open_model` chooses; there is
one file for each protocol. It must not know what a tool does, nor run one.
"""

from multitap.agent.models.language_model import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
)
from multitap.agent.models.open_model import open_model

__all__ = [
    "Model",
    "ModelRequest",
    "Reply",
    "StopReason",
    "TextDelta",
    "Usage",
    "open_model",
]
