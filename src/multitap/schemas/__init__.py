"""Tools' schemas: which can be used, and whether arguments and results fit them."""

from multitap.schemas.bounds import bounds
from multitap.schemas.checker import Checker, Unchecked, compile_schema
from multitap.schemas.definition import defect
from multitap.schemas.results import ResultChecker

__all__ = ["Checker", "ResultChecker", "Unchecked", "bounds", "compile_schema", "defect"]
