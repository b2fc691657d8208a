"""The published drawings are those of the kernel, and change with it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from optimized import drawing
from optimized.sm100 import config, smem

DOCS = Path(__file__).parents[2] / "docs" / "sm100"


@pytest.mark.parametrize("name", drawing.KINDS)
def test_the_drawing_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.svg").read_text(encoding="utf-8") == drawing.svg(name), (
        "draw it again: python -m optimized.drawing docs/sm100"
    )


@pytest.mark.parametrize("name", drawing.KINDS)
def test_every_edge_and_every_region_is_drawn(name: str) -> None:
    dtype, tile_m, _ = drawing.KINDS[name]
    layout = smem.SharedLayout(config.Config(dtype, tile_m, 64))
    root = ElementTree.fromstring(drawing.svg(name))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for edge in layout.edges.all:
        if edge.stages and edge.producer != edge.consumer:
            assert any(text.split(":")[0] == edge.name for text in texts), edge
    assert any(f"{layout.num_bytes:,}" in text for text in texts)


def test_another_configuration_is_another_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawing.svg("fp8-128")
    monkeypatch.setattr(config.Config, "key_stages", property(lambda self: 2))
    assert drawing.svg("fp8-128") != before
