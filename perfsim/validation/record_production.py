"""Writes the record of production runs beside their healthy steps (`perfsim validate --record`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfsim.catalog import Catalog, default_catalog
from perfsim.files import write_file
from perfsim.published.production import healthy_tokens_per_s, production_runs
from perfsim.studies import production

DIGITS = 4


def production_record(catalog: Catalog) -> list[dict[str, Any]]:
    """By production run, its published rate, its predicted rate in tokens/s per device, and their ratio."""
    rows = []
    for run in production_runs(catalog):
        healthy = healthy_tokens_per_s(run)
        rows.append(
            {
                "name": run.name,
                "published_tokens_per_s_per_device": run.tokens_per_s_per_device,
                "healthy_tokens_per_s_per_device": round(healthy, 1),
                "ratio": round(run.tokens_per_s_per_device / healthy, DIGITS),
            }
        )
    return rows


def write_production() -> Path:
    """Write the record into the package; for a checkout, after a change of predictions."""
    path = Path(production.__file__).with_name(production.RECORD)
    write_file(path, json.dumps(production_record(default_catalog()), indent=2) + "\n")
    return path
