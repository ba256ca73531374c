// All that is shown follows from the points of the page and from what is chosen; nothing is asked elsewhere.
const { points: POINTS, currency: CURRENCY } = JSON.parse(document.getElementById("data").textContent);
const NONE = "\u2013";
const REASON = "The reason, if it was tried with these settings, is in the list below.";
const byId = (id) => document.getElementById(id);
const ascending = (values) => [...new Set(values)].sort((one, other) => one - other);
const machines = [...new Set(POINTS.map((point) => point.kind))];
const batches = ascending(POINTS.map((point) => point.asked).filter((batch) => batch !== null));
const axes = {};
for (const [name, value] of POINTS.flatMap((point) => Object.entries(point.settings))) {
  axes[name] = (axes[name] || new Set()).add(value);
}
const chosen = { settings: {}, kind: machines[0], devices: 0, batch: null };
for (const name in axes) chosen.settings[name] = [...axes[name]][0];
const priceOf = ({ money, device_hours: hours }) => Number((money.typical / hours.typical).toPrecision(4));
const prices = Object.fromEntries(POINTS.filter((own) => own.bill?.money).map((own) => [own.kind, priceOf(own.bill)]));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Figures in words. A spread has a typical value, and the low and high end of its 90 % range.
const UNITS = [["years", 365.25 * 86400], ["days", 86400], ["hours", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]];
const spread = (make) => Object.fromEntries(["typical", "low", "high"].map((end) => [end, make(end)]));
const scaled = (known, factor) => spread((end) => known[end] * factor);

function number(value) {
  if (value === null || !Number.isFinite(value)) return NONE;
  return value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 4 });
}

function ranged({ typical, low, high }, unit = "") {
  const words = `${number(typical)}${unit && ` ${unit}`}`;
  return low === high ? words : `${words} (${number(low)} to ${number(high)})`;
}

function duration(seconds) {
  const [unit, scale] = UNITS.find(([, least]) => seconds.typical >= 2 * least) || UNITS.at(-1);
  return ranged(scaled(seconds, 1 / scale), unit);
}

const money = (amount) => `${number(amount)} ${CURRENCY}`;
const energy = (kwh) => (kwh.typical < 1e3 ? ranged(kwh, "kWh") : ranged(scaled(kwh, 1e-3), "MWh"));

// Points of the chosen settings, and what lies between the numbers of devices that were tried.
function matching(kind) {
  return POINTS.filter((point) => point.kind === kind
    && Object.entries(point.settings).every(([name, value]) => chosen.settings[name] === value)
    && (chosen.batch === null || point.asked === null || point.asked === chosen.batch));
}

function seriesOf(kind) {
  const best = new Map();
  for (const point of matching(kind).filter((own) => own.bill)) {
    const known = best.get(point.num_devices);
    if (!known || point.bill.wall_s.typical < known.bill.wall_s.typical) best.set(point.num_devices, point);
  }
  return ascending(best.keys()).map((devices) => best.get(devices));
}

const between = (x, [x0, y0], [x1, y1]) => (x0 === x1 ? y0 : y0 * (x / x0) ** (Math.log(y1 / y0) / Math.log(x1 / x0)));

/** The fewest devices that are at the target by then: the first that was tried, between two, or null. */
function devicesBy(wall, series) {
  const ends = series.map((point) => [point.bill.wall_s.typical, point.num_devices]);
  const place = ends.findIndex(([seconds]) => seconds <= wall);
  if (place < 0) return null;
  if (place === 0) return { devices: ends[0][1], wall: ends[0][0], least: ends[0][0] < wall };
  return { devices: between(wall, ends[place - 1], ends[place]), wall };
}

/** Time on so many devices, with its range; null beyond the numbers that were tried. */
function wallOn(devices, series) {
  const place = series.findIndex((point) => point.num_devices >= devices * (1 - 1e-9));
  if (place < 0 || (place === 0 && series[0].num_devices > devices * (1 + 1e-9))) return null;
  const known = (point, end) => [point.num_devices, point.bill.wall_s[end]];
  return spread((end) => between(devices, known(series[Math.max(place - 1, 0)], end), known(series[place], end)));
}

/** A machine, marked where its nearest point with as many devices has a serious caveat. */
function named(kind, devices) {
  const near = seriesOf(kind).find((point) => point.num_devices >= devices * (1 - 1e-9));
  return near?.caveats.some((caveat) => caveat.severity === "serious") ? `${kind} (low confidence)` : kind;
}

// Tables: a row is a list of cells; the best row has a star.
function putTable(id, heads, rows, best = -1) {
  const head = element("tr", {}, ...heads.map((words) => element("th", { scope: "col" }, words)));
  const body = rows.map((cells, place) => element("tr", {}, ...cells.map((words, column) => {
    if (column === 0) return element("th", { scope: "row" }, words);
    const marked = place === best && column === cells.length - 1;
    const told = marked ? [element("span", { class: "hidden" }, " (best)")] : [];
    return element("td", { "data-label": heads[column], class: marked ? "best" : "" }, words, ...told);
  })));
  const look = heads.length > 2 ? "stack" : "pairs";
  const whole = element("table", { class: look }, element("thead", {}, head), element("tbody", {}, ...body));
  const box = element("div", { class: "scroll" }, whole);
  byId(id).querySelector(".table").replaceChildren(box);
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // so that the keyboard can scroll it
}

/** The place of the least known value where two are known, else -1. */
function least(values) {
  const known = values.filter((value) => value !== null);
  return known.length > 1 ? values.indexOf(Math.min(...known)) : -1;
}

function showPoint(point) {
  const { bill, step_time_s: step, step_time_error: error } = point;
  const price = prices[point.kind];
  putTable("point", ["figure", `${point.machine}, with 90 % ranges`], [
    ["time on the wall", duration(bill.wall_s)],
    ["step", duration({ typical: step, low: step / (1 + error), high: step * (1 + error) })],
    ["batch, sequences", number(point.global_batch_size)],
    ["layout", point.layout],
    ["tokens a second", number(point.tokens_per_s)],
    ["MFU", `${number(100 * point.mfu)} %`],
    ["memory a device", `${number(point.peak_memory_bytes / 2 ** 30)} GiB`],
    ["device-hours", ranged(bill.device_hours)],
    ["energy", bill.energy_kwh ? energy(bill.energy_kwh) : NONE],
    ["money", price ? ranged(scaled(bill.device_hours, price), CURRENCY) : "give its price"],
    ["limited by", point.limited],
  ]);
  byId("point").querySelector(".caveats").replaceChildren(...point.caveats.map(({ severity, text }) => (
    element("li", { class: severity }, element("strong", {}, severity), ` ${text}`))));
}

/** Who is as early as the chosen point, and who of them costs least. */
function showEqualTime(point) {
  const wall = point.bill.wall_s.typical;
  const rows = machines.map((kind) => {
    const own = kind === point.kind ? { devices: point.num_devices, wall } : devicesBy(wall, seriesOf(kind));
    const hours = own && (own.wall / 3600) * own.devices;
    return { kind: named(kind, own?.devices), own, hours, cost: own && prices[kind] ? hours * prices[kind] : null };
  });
  const best = least(rows.map((row) => row.cost));
  putTable("time", ["machine", "devices", "device-hours", "money"], rows.map(({ kind, own, hours, cost }) => {
    const devices = own ? `${own.least ? "\u2264 " : ""}${number(own.devices)}` : "more than were tried";
    return [kind, devices, number(hours), cost ? money(cost) : NONE];
  }), best);
  return best < 0 ? "" : `As early, ${rows[best].kind} costs least: ${money(rows[best].cost)}.`;
}

/** Who is first for as much money an hour. */
function showEqualMoney(point) {
  const budget = prices[point.kind] * point.num_devices;
  const rows = machines.map((kind) => {
    const devices = budget / prices[kind];
    const wall = Number.isFinite(devices) ? wallOn(devices, seriesOf(kind)) : null;
    return { kind: named(kind, devices), devices, wall };
  });
  const best = least(rows.map((row) => row.wall && row.wall.typical));
  putTable("money", ["machine", "devices", "time on the wall"], rows.map(({ kind, devices, wall }) => {
    return [kind, number(devices), wall ? duration(wall) : "beyond what was tried, or no price"];
  }), best);
  if (best < 0) return "";
  const close = rows.filter((row) => row !== rows[best] && row.wall?.low < rows[best].wall.high);
  const overlap = close.length ? `; its range overlaps with ${close.map((row) => row.kind).join(" and ")}` : "";
  return `For ${money(budget)} an hour ${rows[best].kind} is first, after ${duration(rows[best].wall)}${overlap}.`;
}

// The scale of the other pages: a bar for the range, a ring for the value.
function showTried(point) {
  const wall = (row) => row.bill.wall_s;
  const rows = machines.flatMap(seriesOf).sort((one, other) => wall(one).typical - wall(other).typical);
  const low = Math.min(...rows.map((row) => wall(row).low));
  const high = Math.max(...rows.map((row) => wall(row).high));
  const at = (seconds) => (high > low ? (100 * Math.log(seconds / low)) / Math.log(high / low) : 50);
  const part = (look, ...content) => element("span", { class: look }, ...content);
  const line = (look, name, value, ...track) => (
    element("li", { class: `row ${look}` }, part("name", name), part("track", ...track), part("value", ...value)));
  const known = rows.map((row) => {
    const [left, right] = [at(wall(row).low), at(wall(row).high)];
    const bar = element("span", { class: "bar", style: `left:${left}%;width:${right - left}%` });
    const ring = element("span", { class: "point", style: `left:${at(wall(row).typical)}%` });
    const doubt = named(row.kind, row.num_devices).slice(row.kind.length);
    const about = `batch ${number(row.global_batch_size)}, ${row.layout}${doubt}`;
    const value = [element("strong", {}, duration(wall(row))), element("small", {}, about)];
    return line(row === point ? "first" : "", `${row.machine}${row === point ? " (chosen)" : ""}`, value, bar, ring);
  });
  const without = machines.flatMap(matching).filter((row) => !row.bill).map((row) => (
    line("", `${number(row.num_devices)} ${row.kind}`, [row.reasons.join("; ")])));
  byId("tried").querySelector("figure").replaceChildren(element("ul", {}, ...known, ...without));
}

function show() {
  const point = seriesOf(chosen.kind).find((own) => own.num_devices === chosen.devices);
  for (const id of ["point", "time", "money"]) byId(id).hidden = !point;
  showTried(point);
  if (point) showPoint(point);
  const compared = point ? [showEqualMoney(point), showEqualTime(point)].filter(Boolean).join(" ") : REASON;
  const said = point ? `${point.machine}: ${duration(point.bill.wall_s)}` : `${number(chosen.devices)} ${chosen.kind}: no plan`;
  byId("answer").textContent = said;
  byId("compared").textContent = compared || "Give prices of two machines to compare them at equal money.";
}

// Fields: a slider for each list of values, a choice of machines, a number for each price.
const field = (id, words, ...inputs) => element("div", { class: "field" }, element("label", { for: id }, words), ...inputs);

function slider(id, words, values, value, choose, told = String) {
  const output = element("output", { for: id });
  const input = element("input", { type: "range", id, min: 0, max: values.length - 1, step: 1 });
  const say = () => {
    output.textContent = told(values[input.value]);
    input.setAttribute("aria-valuetext", output.textContent);
    choose(values[input.value]);
  };
  input.value = values.indexOf(value);
  input.addEventListener("input", () => { say(); show(); });
  say();
  return field(id, words, output, input);
}

function devicesField() {
  const counts = ascending(POINTS.filter((point) => point.kind === chosen.kind).map((point) => point.num_devices));
  const count = counts.includes(chosen.devices) ? chosen.devices : counts[Math.floor((counts.length - 1) / 2)];
  return slider("devices", "devices", counts, count, (devices) => { chosen.devices = devices; }, number);
}

function machineField() {
  const select = element("select", { id: "machine" }, ...machines.map((kind) => element("option", {}, kind)));
  select.addEventListener("change", () => {
    chosen.kind = select.value;
    byId("devices").parentElement.replaceWith(devicesField());
    show();
  });
  return field("machine", "machine", select);
}

function priceField(kind, place) {
  const input = element("input", { type: "number", id: `price-${place}`, min: 0, step: "any" });
  if (prices[kind]) input.value = prices[kind];
  input.addEventListener("input", () => { prices[kind] = input.valueAsNumber || undefined; show(); });
  return field(input.id, kind, input);
}

for (const name of Object.keys(axes).filter((own) => axes[own].size > 1)) {
  const choose = (value) => { chosen.settings[name] = value; };
  byId("fields").append(slider(`set-${name}`, name, [...axes[name]], chosen.settings[name], choose));
}
byId("fields").append(machineField(), devicesField());
if (batches.length > 1) {
  const told = (batch) => (batch === null ? "best of each" : number(batch));
  byId("fields").append(slider("batch", "batch", [null, ...batches], null, (batch) => { chosen.batch = batch; }, told));
}
byId("prices").append(...machines.map(priceField));
show();
