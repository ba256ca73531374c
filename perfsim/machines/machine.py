"""What a kind of machine answers for itself."""

from __future__ import annotations

from typing import Any, Protocol

from perfsim.workload import Layout


class Machine(Protocol):
    """One kind of system: all that differs between kinds stands behind it."""

    @property
    def kind(self) -> str:
        """The `kind` of its systems in YAML."""

    @property
    def default_strategy(self) -> str:
        """The strategy of a question that names none."""

    def parse_layout(self, text: str, devices: int) -> Layout:
        """`tp=8,pp=4,dp=4,mbs=1` as a layout, long names too; LayoutError lists all that is wrong.

        What the text leaves out follows from the rest and the number of devices.
        """

    def in_chunks(self, layout: Any, /) -> Layout:
        """A layout that streams layers in chunks; InputError where nothing streams."""
