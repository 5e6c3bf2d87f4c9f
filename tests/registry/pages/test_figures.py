"""Charts: their data, the table of their values, texts escaped."""

import json
import re

from registry.pages.figures import Axis, Chart, Series, chart

SCRIPT = "<script>alert(1)</script>"


def made(**more):
    lines = [Series(name="a", x=[1, 2, 4], y=[0.5, None, 2.0]), Series(name="b", x=[2], y=[7.0], color=1)]
    return chart(Chart(**{"name": "x", "title": "T", "x": Axis(title="width", log=True), "series": lines, **more}))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="chart-x">(.*?)</script>', page)[1])


def test_data_and_values():
    page = made()
    data = data_of(page)
    assert (data["kind"], data["x"]["log"], data["y"]["log"]) == ("lines", True, False)
    assert data["series"][0]["y"] == [0.5, None, 2.0]
    assert re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page) == [
        *("width", "1", "2", "4"),
        *("a", "0.5", "-", "2"),
        *("b", "-", "7", "-"),
    ]
    assert 'aria-label="T: values by width of a, b. Arrow keys show values."' in page


def test_bars_have_their_texts_as_values():
    page = made(kind="bars", series=[Series(name="weights", x=[1.5], text="1.5 GiB")], marks=[16])
    assert data_of(page)["marks"] == [{"x": 16}]
    assert ">1.5 GiB</td>" in page
    assert "data-log" not in page


def test_areas_may_have_a_table_of_their_own():
    page = made(kind="areas", values="<table></table>")
    assert data_of(page)["kind"] == "areas"
    assert "<table></table></details>" in page
    assert "data-log" not in page, "logarithms do not stack"


def test_texts_are_escaped():
    page = made(title=SCRIPT, x=Axis(title=SCRIPT), series=[Series(name=SCRIPT, x=[1], y=[1])])
    assert SCRIPT not in page
    assert data_of(page)["series"][0]["name"] == SCRIPT
