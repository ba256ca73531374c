"""The model that a name or a path means, be it of the catalogue or of a foreign file."""

from __future__ import annotations

from pathlib import Path

from perfsim.catalog import Catalog
from perfsim.specs.model import TransformerConfig

GAP = "imported gap"
"""Begins the keys under `assumed` of an imported model that hold what cannot be expressed."""


def model_named(name_or_path: str, catalog: Catalog) -> TransformerConfig:
    """The model of a name of the catalogue, of a YAML file of perfsim, or of a foreign file.

    Raises InputError for an unknown name and for what is wrong in a file.
    """
    path = Path(name_or_path)
    if (path.suffix != "" or len(path.parts) > 1) and path.is_file():
        # The readers load only where there is a file to read.
        from perfsim.interop.formats import format_of, read_model

        if path.suffix not in (".yaml", ".yml") or format_of(path):
            return read_model(path)
    return catalog.model(name_or_path)


def gaps_of(model: TransformerConfig) -> tuple[str, ...]:
    """What the file of an imported model says and perfsim cannot express; empty for any other model."""
    return tuple(f"not expressible: {reason}" for key, reason in model.assumed.items() if key.startswith(GAP))
