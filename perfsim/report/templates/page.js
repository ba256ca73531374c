// A legend needs as many lines as the window makes it: give each plot that height on top of its own.
(() => {
  const NARROW = 600, RESERVED = 30;
  const plots = [...document.querySelectorAll(".js-plotly-plot")];
  const own = new Map(plots.map((plot) => [plot, { height: plot.layout.height, drag: plot.layout.dragmode }]));
  const fit = async (plot) => {
    const narrow = window.innerWidth < NARROW;
    // On a phone a finger scrolls the page; dragging to zoom would hold it fast.
    const look = narrow ? { "font.size": 11, "title.font.size": 13 } : { "font.size": 12, "title.font.size": 15 };
    await Plotly.relayout(plot, { ...look, dragmode: narrow ? false : own.get(plot).drag });
    const legend = plot.querySelector(".legend");
    const lines = legend ? Math.max(0, legend.getBBox().height - RESERVED) : 0;
    const height = own.get(plot).height + Math.round(lines);
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
