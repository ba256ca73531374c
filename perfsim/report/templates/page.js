// Tabs: sections that share a word are shown one at a time, under a row of buttons.
(() => {
  const groups = {};
  for (const section of document.querySelectorAll("section[data-tab]")) {
    (groups[section.dataset.tab] ||= []).push(section);
  }
  for (const sections of Object.values(groups).filter((own) => own.length > 1)) {
    const list = document.createElement("div");
    list.className = "tabs";
    list.setAttribute("role", "tablist");
    const buttons = sections.map((section, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = section.dataset.name;
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", section.id);
      section.setAttribute("role", "tabpanel");
      section.querySelector("h3")?.classList.add("hidden");
      button.addEventListener("click", () => show(index));
      list.append(button);
      return button;
    });
    const show = (chosen) => {
      sections.forEach((section, index) => {
        section.hidden = index !== chosen;
        buttons[index].setAttribute("aria-selected", index === chosen);
      });
      const plot = sections[chosen].querySelector(".js-plotly-plot");
      if (plot && window.Plotly) Plotly.Plots.resize(plot);
    };
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
      buttons[at].focus();
      show(at);
    });
    sections[0].before(list);
    show(0);
  }
})();
// A table as CSV: a text that begins like a formula gets an apostrophe, as in the files of --table.
(() => {
  const cell = (text) => `"${(/^[=+\-@]/.test(text) && isNaN(parseFloat(text)) ? "'" : "") + text.replaceAll('"', '""')}"`;
  for (const table of document.querySelectorAll("main table")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "csv";
    button.textContent = "CSV";
    button.title = "Save this table as CSV";
    button.addEventListener("click", () => {
      const rows = [...table.rows].map((row) => [...row.cells].map((own) => {
        const copy = own.cloneNode(true);
        copy.querySelectorAll(".hidden").forEach((part) => part.remove());
        return cell(copy.textContent.trim());
      }).join(","));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([rows.join("\n") + "\n"], { type: "text/csv" }));
      link.download = `${table.closest("section").id}.csv`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
    table.closest(".scroll").after(button);
  }
})();
// On a phone a row takes many lines: a long table shows its first rows, and a button the others.
(() => {
  const narrow = window.matchMedia("(max-width: 600px)"), ROOM = 300;
  const fold = (table) => {
    let height = 0;
    const rest = [...table.tBodies[0].rows].slice(1).filter((row) => (height += row.offsetHeight) > ROOM);
    if (!rest.length || table.dataset.folded) return;
    table.dataset.folded = rest.length;
    rest.forEach((row) => row.classList.add("rest"));
    const button = document.createElement("button");
    button.type = "button";
    button.className = "csv all";
    button.textContent = `Show all ${table.tBodies[0].rows.length} rows`;
    button.addEventListener("click", () => {
      rest.forEach((row) => row.classList.remove("rest"));
      button.remove();
    });
    table.closest(".scroll").after(button);
  };
  const foldAll = () => narrow.matches && document.querySelectorAll("main table").forEach(fold);
  narrow.addEventListener("change", foldAll);
  foldAll();
})();
// Figures come compressed.
const drawn = Promise.all([...document.querySelectorAll("script[data-figure]")].map(async (script) => {
  const packed = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const { figure, config } = await new Response(plain).json();
  await Plotly.newPlot(script.dataset.figure, figure.data, figure.layout, config);
}));
// A legend needs as many lines as the window makes it: give each plot that height on top of its own.
// On a phone letters are smaller, and a finger scrolls the page instead of dragging a zoom.
drawn.then(() => {
  const NARROW = 600, RESERVED = 30;
  const WIDE_LOOK = { "font.size": 12, "title.font.size": 15 };
  const NARROW_LOOK = { "font.size": 11, "title.font.size": 13, dragmode: false };
  const plots = [...document.querySelectorAll(".js-plotly-plot")].map((plot) => (
    { plot, height: parseFloat(plot.closest(".plot").style.minHeight), dragmode: plot.layout.dragmode, narrow: false }
  ));
  const fit = async (entry) => {
    const { plot } = entry, narrow = window.innerWidth < NARROW;
    if (narrow !== entry.narrow) {
      entry.narrow = narrow;
      await Plotly.relayout(plot, narrow ? NARROW_LOOK : { ...WIDE_LOOK, dragmode: entry.dragmode });
    }
    const legend = plot.querySelector(".legend");
    const more = legend ? Math.max(0, legend.getBBox().height - RESERVED) : 0;
    const height = entry.height + Math.round(more), room = plot.parentElement.clientWidth;
    if (height === plot._fullLayout.height && room === plot._fullLayout.width) return;
    plot.style.height = plot.parentElement.style.height = height + "px";
    await Plotly.relayout(plot, room ? { height, width: room } : { height });
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
  const PAPER = 690; // pixels between the margins of A4
  const TALL = 440, SHORTER = 0.8; // so that a tall plot seldom moves to the next page and leaves a gap
  const sized = (plot, width, height) => {
    plot.style.height = plot.parentElement.style.height = height + "px";
    if (width) Plotly.relayout(plot, { width, height });
  };
  window.addEventListener("beforeprint", () => plots.forEach((entry) => {
    entry.screen = entry.plot._fullLayout.height;
    sized(entry.plot, PAPER, entry.screen > TALL ? Math.round(SHORTER * entry.screen) : entry.screen);
  }));
  window.addEventListener("afterprint", () => plots.forEach(({ plot, screen }) => (
    sized(plot, plot.parentElement.clientWidth, screen)
  )));
});
// A table that is wider than its place can be scrolled with the keyboard.
(() => {
  const watch = new ResizeObserver((boxes) => boxes.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));
  document.querySelectorAll(".scroll").forEach((box) => watch.observe(box));
})();
