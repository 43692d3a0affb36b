"""Tools' schemas: which can be used, and whether arguments and results fit them.

In: a definition as a server writes it, then arguments and structured content. Out: a tool that can
be used or the reason it cannot, and what does not fit, with its path. `bounds` tells how much work
a schema makes before anything compiles it: schemas are foreign. It must not know which server a
tool belongs to, nor fetch what a schema refers to.
"""

from multitap.catalog.schemas.argument_checker import Checker, Unchecked, compile_schema
from multitap.catalog.schemas.bounds import bounds
from multitap.catalog.schemas.result_checker import ResultChecker
from multitap.catalog.schemas.tool_definition import defect

__all__ = ["Checker", "ResultChecker", "Unchecked", "bounds", "compile_schema", "defect"]
