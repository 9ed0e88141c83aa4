// The last hour of the box, minute by minute: small plots.

import { call } from "./api.js";
import { at, element } from "./dom.js";

const LOOK_MS = 15_000;
const MINUTES = 60;
const HEIGHT = 40;
const round = (value) => Math.round(value).toString();
const seconds = (value) => (value < 10 ? Number(value.toFixed(1)).toString() : round(value));
const PLOTS = [
  { title: "Clocks", unit: "MHz", show: round, lines: { GPU: (row) => row.mhz.gpu, CPU: (row) => row.mhz.cpu, EMC: (row) => row.mhz.emc } },
  { title: "Temperature", unit: "°C", show: round, isZoomed: true, lines: { "": (row) => row.celsius } },
  { title: "Speech per minute", unit: "s", show: seconds, lines: { "": (row) => row.speech_s } },
  { title: "First sound", unit: "ms", show: round, lines: { P50: (row) => ms(row.first_audio_p50_s), P95: (row) => ms(row.first_audio_p95_s) } },
];
const section = at("device");
section.setAttribute("aria-labelledby", "device-title");
section.innerHTML = `<h2 id="device-title">Device: the last hour</h2><dl></dl><p class="hint" role="status"></p><div id="plots"></div>`;
const [facts, note, plots] = section.querySelectorAll("dl, p, div");
let shown = "";

function ms(value) {
  return value === null ? null : 1000 * value;
}

// Each line of a plot that has a value, with those of its minutes; null for a minute without one.
function linesOf(plot, rows) {
  return Object.entries(plot.lines)
    .map(([name, read]) => ({ name, values: rows.map((row) => read(row) ?? null) }))
    .filter(({ values }) => values.some((value) => value !== null));
}

function scaleOf(plot, lines) {
  const all = lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const least = plot.isZoomed ? 10 * Math.floor(Math.min(...all) / 10) : 0;
  const most = Math.max(...all, least + 1);
  const step = 10 ** Math.floor(Math.log10(most - least)) / 2;
  return [least, least + step * Math.ceil((most - least) / step)];
}

// The latest minute is at the right edge. A minute without a value is a gap; what begins anew is drawn as wide as its minute.
function pathOf(values, [least, most]) {
  let path = "";
  values.forEach((value, index) => {
    if (value === null) return;
    const x = MINUTES - values.length + index + 1;
    const y = (HEIGHT * (1 - (value - least) / (most - least))).toFixed(2);
    path += (values[index - 1] ?? null) === null ? `M${x - 1} ${y}h1` : `L${x} ${y}`;
  });
  return path;
}

function labelOf(plot, lines) {
  const parts = lines.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    const [now, least, most] = [values.at(-1), Math.min(...known), Math.max(...known)].map((value) => (value === null ? "none" : plot.show(value)));
    return `${name && `${name} `}now ${now}, lowest ${least}, highest ${most} ${plot.unit}`;
  });
  return `${plot.title} in the last hour: ${parts.join("; ")}`;
}

function figure(plot, lines) {
  const made = element("figure");
  const scale = scaleOf(plot, lines);
  const paths = lines.map(({ values }) => `<path d="${pathOf(values, scale)}"/>`).join("");
  made.innerHTML = `<figcaption><b></b></figcaption><div aria-hidden="true"><span></span><span></span></div>
    <svg role="img" viewBox="0 0 ${MINUTES} ${HEIGHT}" preserveAspectRatio="none">${paths}</svg>`;
  made.querySelector("b").textContent = `${plot.title}, ${plot.unit}`;
  for (const { name, values } of lines) {
    const last = values.at(-1);
    const words = `${name} ${last === null ? "–" : plot.show(last)}`;
    made.querySelector("figcaption").append(element("span", lines.length > 1 ? "line" : "", words));
  }
  const [most, least] = made.querySelectorAll("div span");
  [least.textContent, most.textContent] = scale.map(plot.show);
  made.querySelector("svg").setAttribute("aria-label", labelOf(plot, lines));
  return made;
}

// The latest value, and for how many minutes there were others.
function shares(values) {
  const counts = new Map([[values.at(-1), 0]]);
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const [[now], ...others] = [...counts].map(([value, count]) => [value.replaceAll("_", " "), count]);
  return [now, ...others.map(([value, count]) => `${value} for ${count} of ${values.length} min`)].join("; ");
}

function show({ state, minutes }) {
  const rows = minutes.slice(-MINUTES);
  note.textContent = !state
    ? "The daemon reports nothing at server.metrics."
    : rows.length ? "" : "The first figures come a minute after the daemon's start.";
  const named = Object.entries({ Engine: rows.map((row) => row.engine || "starting"), Clocks: rows.map((row) => row.clocks) })
    .filter(([, values]) => values.some((value) => value !== "unsupported"));
  facts.replaceChildren(...named.flatMap(([name, values]) => [element("dt", "", name), element("dd", "", shares(values))]));
  const drawn = PLOTS.map((plot) => [plot, linesOf(plot, rows)]).filter(([, lines]) => lines.length);
  plots.replaceChildren(...drawn.map(([plot, lines]) => figure(plot, lines)));
}

async function look() {
  try {
    const answer = await (await call("/api/minutes")).text();
    if (answer !== shown) show(JSON.parse(answer));
    shown = answer;
  } catch (error) {
    shown = "";
    note.textContent = error.status ? error.message : "The gateway cannot be reached.";
  }
}

look();
setInterval(look, LOOK_MS);
