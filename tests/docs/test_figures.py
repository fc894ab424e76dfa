"""Figures of the pages stand in result files: `python -m benchmarks.tables --check`."""

import json
import re

import pytest

from benchmarks import tables
from benchmarks.table_specs import FIGURES, TABLES, Table


def read(page):
    return (tables.ROOT / page).read_text()


def regions(pages=tables.PAGES):
    return [(page, match) for page in pages for match in tables._REGION.finditer(read(page))]


@pytest.mark.parametrize("page", tables.PAGES)
def test_every_figure_is_that_of_a_result_file(page):
    assert tables.problems(read(page), page in tables.CHECKED) == []


def test_every_specification_is_on_one_page():
    # A figure stands once.
    shown = sorted((match[2], match[3]) for _, match in regions())
    accuracy = [("accuracy", name) for name in tables.accuracy_tables()]
    expected = [("table", t) for t in TABLES] + [("figure", f) for f in FIGURES] + accuracy
    assert shown == sorted(expected)


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_digit_changed_by_hand_is_found(page):
    text = read(page)
    for region in tables._REGION.finditer(text):
        for digit in re.finditer(r"\d", region[4]):
            place = region.start(4) + digit.start()
            changed = text[:place] + str((int(digit[0]) + 1) % 10) + text[place + 1 :]
            (problem,) = tables.problems(changed, page in tables.CHECKED)
            assert problem.startswith(f"{region[2]} {region[3]}:")


@pytest.mark.parametrize(
    "sentence",
    [
        "A step takes 92.1 ms.",
        "It is 2.85 times as fast.",
        "It is 2.85x as fast, and needs 3.9 GB.",
        "It takes 12 % less.",
        "1,024 bytes a row.",
        "5 s to build.",
    ],
)
def test_a_figure_without_a_source_is_found(sentence):
    for page in tables.CHECKED:
        found = tables.problems(f"{read(page)}\n{sentence}\n", True)
        assert found and all("no source" in problem for problem in found)


@pytest.mark.parametrize("text", ["4 heads of 4 × 64", "602 → 128 → 41", "k = 32", "16 threads"])
def test_sizes_need_no_source(text):
    assert tables.problems(text, True) == []


def test_an_unknown_region_is_an_error():
    with pytest.raises(KeyError, match="nowhere"):
        tables.problems("<!-- table: nowhere --><!-- end -->", True)


def test_every_mark_is_closed():
    for page in tables.PAGES:
        text = read(page)
        marks = len(re.findall(r"<!-- (?:table|figure|accuracy):", text))
        assert marks == len(tables._REGION.findall(text)) == text.count("<!-- end -->")


def test_the_newest_row_of_each_implementation_counts(tmp_path, monkeypatch):
    def write(date, **milliseconds):
        rows = [
            {"case": "g m", "impl": impl, "dtype": "float32", "pass": "forward", "accurate": True}
            | {"shape": {}, "ms": ms}
            for impl, ms in milliseconds.items()
        ]
        content = {"header": {"date": date}, "graphs": [], "rows": rows}
        (tmp_path / f"{date}-suite.json").write_text(json.dumps(content))

    write("2026-01-01", ours=1.0, fast=3.0, slow=4.0)
    write("2026-01-02", ours=2.0, slow=5.0)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    tables.results.cache_clear()
    try:
        ours = {"file": "suite", "impl": "ours", "graph": "g", "model": "m"}
        assert tables.figure(ours, []) == 2.0
        assert tables.figure({**ours, "over": {"impl": ("fast", "slow")}}, []) == 1.5
        assert tables.figure({**ours, "impl": "sl*"}, []) == 5.0
        assert tables.figure({**ours, "dtype": "bfloat16"}, []) is None
    finally:
        tables.results.cache_clear()


def test_results_are_the_current_ones_without_samples():
    names = [path.name for path in tables.RESULTS.iterdir()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.json", name) for name in names)
    assert len({name[11:] for name in names}) == len(names)  # no older file of the same suite
    assert not any("samples" in row for result in tables.results() for row in result.rows)
    commits = {result.header["commit"][:7] for result in tables.results()}
    assert not any(commit in name for commit in commits for name in names)


def test_a_row_without_results_is_an_error():
    base = {"file": "nvidia-h200-training", "case": "reddit", "pass": "step"}
    ours, nobody = {"impl": "jaxgnn"}, {"impl": "nobody"}
    table = Table("x", {"ours": ours, "nobody": nobody}, {"ms": {}}, base)
    with pytest.raises(ValueError, match="nobody"):
        tables.table(table)
