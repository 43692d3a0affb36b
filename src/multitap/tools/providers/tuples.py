"""Rewrites tuple schemas, which no provider accepts."""

from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list
from multitap.tools.providers.walk import Schema


def places_of(array: Mapping[str, Any]) -> list[Any] | None:
    """The schema of each position; empty for an array with uniform items."""
    places = array.get("prefixItems", array.get("items"))
    return places if is_list(places) else None


def limit_length(array: Schema, places: list[Any]) -> Schema:
    """The maximum length of an array with those positions, if there is one."""
    rest = array.get("items") if "prefixItems" in array else array.get("additionalItems")
    if rest is not False:
        return {}
    most = array.get("maxItems")
    return {"maxItems": min(len(places), most) if isinstance(most, int) else len(places)}
