// Draws the figures in the colors that the page has now: its CSS variables, which figures name as var(--name).
"use strict";
(async () => {
  const { template, figures } = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".figure")];
  const root = document.documentElement;
  const PAPER = 680; // pixels: A4 and Letter without their margins
  const LEAST = 100; // below, the page is hidden, or between two sizes

  // The page of a search that runs loads itself again, where it was, unless somebody selects or types something.
  scrollTo(0, history.state?.place ?? scrollY);
  const refresh = 1000 * document.body.dataset.refresh;
  const isUsed = () => !getSelection().isCollapsed || [...document.querySelectorAll("input")].some((each) => each.value);
  if (refresh) {
    setInterval(() => {
      if (document.hidden || isUsed()) return;
      history.replaceState({ place: scrollY }, "");
      location.reload();
    }, refresh);
  }

  function colored(value, style) {
    if (typeof value === "string") {
      return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((inner) => colored(inner, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, colored(inner, style)]));
  }

  function draw(place, width = place.clientWidth) {
    const style = getComputedStyle(root);
    const { data, layout } = colored(figures[place.dataset.figure], style);
    // The width is always told: what plotly finds by itself while a page is printed is that of the screen.
    const size = { width, autosize: false, template: colored(template, style) };
    if (width >= LEAST) Plotly.react(place, data, { ...layout, ...size }, { displayModeBar: false });
  }

  async function loadPlotly() {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (byte) => byte.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }
  await loadPlotly();

  // A figure is drawn when it comes near to what is shown: the page is there at once however many there are.
  const seen = new Set();
  const near = new IntersectionObserver(
    (entries) =>
      entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
        near.unobserve(target);
        if (!seen.has(target)) (seen.add(target), draw(target));
      }),
    { rootMargin: "600px" },
  );
  places.forEach((place) => near.observe(place));

  const onPaper = () => root.classList.contains("paper");
  let asked = 0;
  function drawSeen() {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(() => onPaper() || seen.forEach((place) => draw(place)));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSeen);
  addEventListener("resize", drawSeen);
  addEventListener("beforeprint", () => {
    root.classList.add("paper");
    places.forEach((place) => {
      seen.add(place);
      draw(place, place.classList.contains("half") ? PAPER / 2 - 8 : PAPER);
    });
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    drawSeen();
  });
})();
