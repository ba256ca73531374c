"""The version of all that computes an answer."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from perfsim.prediction.bands import recorded_errors
from perfsim.version import __version__

_PRESENTATION = frozenset({"report", "api", "cli", "__main__.py"})


@cache
def model_version() -> str:
    """The version of perfsim, of its computing modules, and of the recorded errors that set bands.

    The modules are included so that a corrected model does not reuse old answers.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _PRESENTATION and name.parts[0] != "_data":
            digest.update(name.as_posix().encode("utf-8") + b"\0" + path.read_bytes() + b"\0")
    digest.update(json.dumps(recorded_errors(), sort_keys=True).encode("utf-8"))
    return f"{__version__}+{digest.hexdigest()[:16]}"
