// A legend needs as many lines as the window makes it: give each plot that height on top of its own.
// On a phone letters are smaller, and a finger scrolls the page instead of dragging a zoom.
(() => {
  const NARROW = 600, RESERVED = 30;
  const WIDE_LOOK = { "font.size": 12, "title.font.size": 15 };
  const NARROW_LOOK = { "font.size": 11, "title.font.size": 13, dragmode: false };
  const plots = [...document.querySelectorAll(".js-plotly-plot")].map((plot) => (
    { plot, height: plot.layout.height, dragmode: plot.layout.dragmode, narrow: false }
  ));
  const fit = async (entry) => {
    const { plot } = entry, narrow = window.innerWidth < NARROW;
    if (narrow !== entry.narrow) {
      entry.narrow = narrow;
      await Plotly.relayout(plot, narrow ? NARROW_LOOK : { ...WIDE_LOOK, dragmode: entry.dragmode });
    }
    const legend = plot.querySelector(".legend");
    const more = legend ? Math.max(0, legend.getBBox().height - RESERVED) : 0;
    const height = entry.height + Math.round(more);
    if (height === plot.layout.height) return;
    plot.style.height = plot.parentElement.style.height = height + "px";
    await Plotly.relayout(plot, { height });
  };
  let width = 0, timer = 0;
  const fitAll = async () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    await Promise.all(plots.map(fit));
    document.documentElement.dataset.fitted = width;
  };
  fitAll();
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(fitAll, 200); });
})();
