"""Which commit each recorded report is of, and whether answers have moved since.

    python tests/records/reports.py              ends with 1 where a report is stale
    python tests/records/reports.py seeds.md     notes that seeds.md was made on this commit

A report of predictions is stale once recorded answers have moved since its commit. `make records` makes all.
"""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "reports" / "records.yaml"
OF_ANSWERS = ("validation.md", "seeds.md", "regret.md", "showdown.md")
"""The other reports are of tests and of speed."""
ANSWERS = tuple(f"tests/records/answers/{kind}*" for kind in ("step", "study", "plan", "sweep"))
HEAD = "# The commit that each report of this folder was made on; `make records` makes all and notes them.\n"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def known() -> dict[str, str]:
    """The commit of each report."""
    return {name: str(commit) for name, commit in yaml.safe_load(KNOWN.read_text(encoding="utf-8")).items()}


def stale() -> list[str]:
    """A line for each report of predictions whose answers have moved since it was made."""
    lines = []
    for report in OF_ANSWERS:
        commit = known()[report]
        if moved := _git("diff", "--name-only", commit, "HEAD", "--", *ANSWERS).split():
            names = ", ".join(Path(path).stem for path in moved[:3])
            lines.append(f"{report} is of {commit}; {len(moved)} records moved since: {names}, ...")
    return lines


def note(reports: list[str]) -> None:
    """Writes that these reports were made on this commit."""
    commits = known() | dict.fromkeys(reports, _git("rev-parse", "--short=8", "HEAD"))
    KNOWN.write_text(HEAD + yaml.safe_dump(commits), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        note(sys.argv[1:])
    else:
        sys.exit("\n".join(stale()) or None)
