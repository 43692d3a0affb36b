"""Tool schemas: whether they can be used, and whether arguments and results match them.

In: a definition as a server wrote it, then arguments and structured content. Out: a usable tool or
the reason it is not, and each mismatch with its path. Schemas are foreign, so `bounds` estimates
their cost before anything compiles them. It must not know which server a tool belongs to, and never
fetches what a schema refers to.
"""

from multitap.catalog.schemas.bounds import bounds
from multitap.catalog.schemas.checking import Checker, ResultChecker, Unchecked, compile_schema
from multitap.catalog.schemas.schema import TaskSupport, defect, task_support

__all__ = [
    "Checker",
    "ResultChecker",
    "TaskSupport",
    "Unchecked",
    "bounds",
    "compile_schema",
    "defect",
    "task_support",
]
