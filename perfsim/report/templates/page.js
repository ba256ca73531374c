// A legend needs as many lines as the window makes it: give each plot that height on top of its own.
(() => {
  const NARROW = 600, RESERVED = 30;
  const plots = [...document.querySelectorAll(".js-plotly-plot")];
  const own = new Map(plots.map((plot) => [plot, plot.layout.height]));
  const fit = async (plot) => {
    const size = window.innerWidth < NARROW ? 11 : 12;
    await Plotly.relayout(plot, { "font.size": size, "title.font.size": size + (size < 12 ? 2 : 3) });
    const legend = plot.querySelector(".legend");
    const lines = legend ? Math.max(0, legend.getBBox().height - RESERVED) : 0;
    const height = own.get(plot) + Math.round(lines);
    if (height === plot.layout.height) return;
    plot.style.height = plot.parentElement.style.height = height + "px";
    await Plotly.relayout(plot, { height });
  };
  let width = 0, timer = 0;
  const fitAll = () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    plots.forEach(fit);
  };
  fitAll();
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(fitAll, 200); });
})();
