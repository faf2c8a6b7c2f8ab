// Draws the figures in the colors that the page has now: its CSS variables, which figures name as var(--name).
"use strict";
(() => {
  const { template, figures } = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".figure")];
  const root = document.documentElement;
  const PAPER = 680; // pixels: A4 and Letter without their margins

  function colored(value, style) {
    if (typeof value === "string") {
      return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((inner) => colored(inner, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, colored(inner, style)]));
  }

  function draw(place, width) {
    const style = getComputedStyle(root);
    const { data, layout } = colored(figures[place.dataset.figure], style);
    const own = place.classList.contains("half") ? width / 2 - 8 : width;
    const size = width ? { width: own, autosize: false } : { autosize: true };
    const config = { displayModeBar: false, responsive: !width, scrollZoom: false };
    Plotly.react(place, data, { ...layout, template: colored(template, style), ...size }, config);
  }

  const seen = new Set();
  const drawSeen = () => seen.forEach((place) => draw(place));
  const drawAll = (width) => places.forEach((place) => (seen.add(place), draw(place, width)));

  // A figure is drawn when it comes near to what is shown: the page is there at once however many there are.
  const near = new IntersectionObserver(
    (entries) =>
      entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
        near.unobserve(target);
        if (!seen.has(target)) (seen.add(target), draw(target));
      }),
    { rootMargin: "600px" },
  );
  places.forEach((place) => near.observe(place));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSeen);
  addEventListener("beforeprint", () => (root.classList.add("paper"), drawAll(PAPER)));
  addEventListener("afterprint", () => (root.classList.remove("paper"), drawSeen()));
})();
