from dataclasses import replace

import pytest

from searchlight.search.reporting import live_page
from searchlight.search.reporting.html.report import write_report
from searchlight.search.reporting.html.theme import DARK, LIGHT
from tests.search.reporting.html.page_studies import many

VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1100, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1100, "height": 800}},
    "phone": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}},
}
SIZES = "figures => figures.map(figure => [figure.querySelectorAll('.main-svg').length, figure.scrollWidth])"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(many(40), path)
    return path


@pytest.fixture
def opened(chromium, path):
    """Opens the page in a view. What it complains about, and asks of the network, is an error at the end."""
    problems, contexts = [], []

    def open_in(view):
        context = chromium.new_context(offline=True, **VIEWS[view])
        contexts.append(context)
        shown = context.new_page()
        shown.set_default_timeout(30_000)
        shown.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
        shown.goto(path.as_uri())
        return shown

    yield open_in
    for context in contexts:
        context.close()
    assert problems == []


def draw_all(shown):
    """Scroll down as a reader does: figures are drawn when they come near."""
    for place in shown.locator(".figure").all():
        place.scroll_into_view_if_needed()
        place.locator(".main-svg").first.wait_for()


def rgb(color):
    return f"rgb({int(color[1:3], 16)}, {int(color[3:5], 16)}, {int(color[5:7], 16)})"


def axis_color(shown):
    return shown.eval_on_selector(".figure .xtick text", "text => getComputedStyle(text).fill")


def wait_for_axis_color(shown, color):
    from playwright.sync_api import expect

    expect(shown.locator(".figure .xtick text").first).to_have_css("fill", rgb(color), timeout=30_000)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_figure_is_drawn_within_the_width(opened, view):
    shown = opened(view)
    draw_all(shown)
    figures = shown.eval_on_selector_all(".figure", SIZES)
    width = VIEWS[view]["viewport"]["width"]
    assert len(figures) == 7
    assert all(drawn and size <= width for drawn, size in figures)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert axis_color(shown) == rgb((DARK if view == "dark" else LIGHT)["faint"])


@pytest.mark.slow
def test_figures_follow_the_color_scheme_and_print_light(opened):
    shown = opened("light")
    shown.locator(".main-svg").first.wait_for()
    shown.emulate_media(color_scheme="dark")
    wait_for_axis_color(shown, DARK["faint"])
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")  # most of them were never scrolled to
    figures = shown.eval_on_selector_all(".figure", SIZES)
    assert len(figures) == 7
    assert all(drawn for drawn, _ in figures)
    assert axis_color(shown) == rgb(LIGHT["faint"])
    assert shown.evaluate("Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.clientWidth))") <= 690
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    wait_for_axis_color(shown, DARK["faint"])
    assert shown.pdf().startswith(b"%PDF")


# True in a page that was loaded again and is where it was. A place of an instant before is lost on a busy machine.
KEEPS_ITS_PLACE = """() => {
  if (document.readyState !== 'complete' || window.isScrolled) return false;
  if (scrollY === 700) return true;
  scrollTo(0, 700);
  window.isScrolled = true;
  return false;
}"""


@pytest.mark.slow
def test_live_page_loads_itself_again_and_keeps_its_place(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr(live_page, "REFRESH_S", 1)
    file = tmp_path / "report.html"
    file.write_text(live_page.render_live(many(40)))
    context = chromium.new_context(offline=True, bypass_csp=True, **VIEWS["light"])  # functions need eval
    shown = context.new_page()
    shown.goto(file.as_uri())
    # Functions are called in the browser until they are true, also if the page loads itself meanwhile.
    shown.wait_for_function(KEEPS_ITS_PLACE, timeout=30_000)
    (later := tmp_path / "later.html").write_text(live_page.render_live(replace(many(40), name="renamed")))
    later.replace(file)  # at once, as a search does: half a page would not load itself again
    shown.wait_for_function("() => document.title === 'renamed' && scrollY === 700", timeout=30_000)
    context.close()
