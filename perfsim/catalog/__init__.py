"""YAML files read into descriptions, with every error at its line.

A description (of a device, system, model, ...) has its own file and is found by name; `extends` lists
only the differences; every value has a source or a reason why it is assumed.
"""

from perfsim.catalog.catalog import Catalog, data_root, default_catalog, parse_data, parse_file
from perfsim.catalog.reader import KINDS, LocatedMapping

__all__ = ["KINDS", "Catalog", "LocatedMapping", "data_root", "default_catalog", "parse_data", "parse_file"]
