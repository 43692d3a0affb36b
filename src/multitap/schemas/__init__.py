"""Tools' schemas: which can be used, and whether arguments fit them."""

from multitap.schemas.bounds import bounds
from multitap.schemas.checker import Checker, Unchecked, compile_schema
from multitap.schemas.definition import defect

__all__ = ["Checker", "Unchecked", "bounds", "compile_schema", "defect"]
