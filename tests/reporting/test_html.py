import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from distro_fed.reporting.html import render_html, write_html
from distro_fed.reporting.ledger import TrafficLedger
from distro_fed.reporting.report import LeftOut, Losses, RoundRecord
from tests.reporting.sample_report import sample


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_losses_bytes_and_ratios_are_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(sample(), path)
    text = parse(path.read_text()).text
    for expected in ("3.0000 → 2.0000", "-1.0000", "4.55 kB", "1,760x", "14,100x", "7,030x", "north", "1.60 kB"):
        assert expected in text, expected
    assert "loss is not finite" in text
    assert "num-server-rounds" in text


def test_the_page_loads_and_runs_nothing() -> None:
    tags = parse(render_html(sample()))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tags.seen}
    assert not {"src", "href", "onload", "onclick"} & {name for _, attributes in tags.seen for name in attributes}
    assert "url(" not in render_html(sample()) and "@import" not in render_html(sample())


def test_texts_of_others_are_escaped_everywhere() -> None:
    evil = "<script>alert(1)</script>\"'>&"
    report = replace(
        sample(
            name=evil, mode=evil, compressor=evil, clients=[evil], loss_before={evil: 2.0}, loss_after={evil: 1.0},
            model_path=evil, settings={evil: evil}, ledger=TrafficLedger(),
            history=[RoundRecord(1, 1.0, Losses.of({evil: 1.5}), left_out=[LeftOut(evil, evil)])],
        ),
        machine={evil: evil}, versions={evil: evil},
    )  # fmt: skip
    page = render_html(report)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 12
    parse(page)


def test_what_happened_besides_has_a_table_of_its_own() -> None:
    page = render_html(sample(drifts={"<b>south</b>": 2}, resumed=1))
    assert "Incidents" in parse(page).text
    assert "<b>south" not in page
    assert "run was resumed from a checkpoint 1 times" in parse(page).text
    assert "Incidents" not in render_html(sample())


def test_both_charts_have_a_line_for_each_organisation_and_the_mean() -> None:
    page = render_html(sample())
    first, second = (chart for chart in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert first.count("<polyline") == 4  # two organisations, their mean, the training loss
    assert second.count("<polyline") == 3
    assert "north: 2.5000 at round 0" in first
    assert "north: 1.5000 at 4.55 kB" in second
    assert "one round of R1" in second


def test_many_organisations_share_one_colour() -> None:
    names = [f"org-{number}" for number in range(30)]
    losses = dict.fromkeys(names, 2.0)
    history = [RoundRecord(1, 1.0, Losses.of(losses))]
    page = render_html(sample(clients=names, loss_before=losses, loss_after=losses, history=history))
    assert "each of 32 organisations" in page  # the ledger of the sample knows two more
    assert 'class="series many"' in page and 'class="series c0"' not in page


def test_the_last_round_shows_the_final_losses_when_evaluated_after_it() -> None:
    history = [RoundRecord(1, 1.0, Losses.of({"north": 2.25})), RoundRecord(2, 1.0, Losses.of({}))]
    assert "north: 1.5000 at round 2" in render_html(sample(history=history))


def test_a_run_without_any_loss_has_a_page() -> None:
    page = render_html(sample(history=[], loss_before={}, loss_after={}))
    assert page.count("No loss was measured") == 2
