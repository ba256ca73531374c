"""The graph of a system in a file."""

import re
from pathlib import Path

import networkx as nx
import pytest

from perfsim.api.inventory import write_network
from perfsim.base.errors import InputError


def test_graphml_holds_every_vertex_and_edge_with_its_capacity(tmp_path: Path) -> None:
    path = tmp_path / "cs.graphml"
    said = write_network("cs-2", path, 5)
    graph = nx.read_graphml(path, force_multigraph=True)
    counted = {"vertices": len(graph), "edges": graph.number_of_edges()}
    assert said == {"file": str(path), "system": "cs-2", "num_devices": 5, **counted}
    assert graph.nodes["memoryx/server0/flash"]["kind"] == "flash"
    (edge,) = graph["memoryx/server0/flash"]["memoryx/server0/dram"].values()
    assert (edge["kind"], edge["bytes_per_s"], edge["duplex"]) == ("flash", 12.5e9, False)


def test_dot_holds_every_vertex_and_edge_of_two_nodes(tmp_path: Path) -> None:
    path = tmp_path / "dgx.dot"
    write_network("dgx-a100-80gb", path)
    text = path.read_text()
    assert text.startswith("digraph {\n")
    assert len(re.findall(r'^  "node\d/gpu\d" \[kind="device"\];$', text, re.MULTILINE)) == 16
    assert '"node0/gpu0" -> "node0/nvswitch" [link="0", kind="scale_up", bytes_per_s="300000000000.0"' in text
    of_hosts = 2 * (8 + 1 + 1)  # a link of each GPU, memory and drives of the node
    assert text.count(" -> ") == 2 * (3 * 16 + of_hosts)


def test_another_ending_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.graphml, \.dot, \.gv"):
        write_network("cs-2", tmp_path / "cs.png")
    assert not list(tmp_path.iterdir())
