"""Language models of any maker, asked in one way."""

from multitap.agent.models.model import Model, Reply, Request, StopReason, TextDelta, Usage
from multitap.agent.models.opening import open_model

__all__ = [
    "Model",
    "Reply",
    "Request",
    "StopReason",
    "TextDelta",
    "Usage",
    "open_model",
]
