"""An attribute worked out when it is first looked at."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class lazy(Generic[_T]):  # noqa: N801 - used as a decorator, as `property` is
    """Like `functools.cached_property`, without the lock that it takes on Python 3.11."""

    def __init__(self, work: Callable[[Any], _T]) -> None:
        self._work = work
        self._name = work.__name__
        self.__doc__ = work.__doc__

    def __get__(self, instance: object, owner: type[object]) -> _T:
        value = instance.__dict__[self._name] = self._work(instance)
        return value
