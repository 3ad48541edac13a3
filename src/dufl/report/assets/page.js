"use strict";

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const paper = matchMedia("print");

// Every colour of the charts, for light and for dark backgrounds.
const COLOURS = {
  "#0072B2": ["#0072B2", "#4DA9E4"],
  "#E69F00": ["#C27C00", "#F2B134"],
  "#009E73": ["#00855F", "#2CC79A"],
  "#D55E00": ["#C85400", "#FF8142"],
  "#CC79A7": ["#B0558A", "#E29BC4"],
  "#56B4E9": ["#2A8CC4", "#8FD3FA"],
  "#777777": ["#6A6A6A", "#A6ADB5"],
};
const BACKGROUNDS = [["#1c2128", "#ffffff"], ["#e8ebef", "#1a1e25"]]; // text and background

function isDark() {
  if (paper.matches) return false;
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function remember(theme) {
  try {
    localStorage.setItem("dufl-theme", theme);
  } catch { /* a page opened from disk may not be allowed to */ }
}

async function unpack(name) {
  const packed = atob(document.getElementById(name).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)).join(",");
}

// A figure in the colours of the theme.
function coloured(text, night) {
  for (const [colour, shades] of Object.entries(COLOURS)) {
    const shade = shades[night ? 1 : 0];
    text = text.replaceAll(colour, shade).replaceAll(`rgba(${channels(colour)},`, `rgba(${channels(shade)},`);
  }
  const figure = JSON.parse(text);
  const [ink, background] = BACKGROUNDS[night ? 1 : 0];
  const layout = figure.layout;
  layout.font = { ...layout.font, color: ink, family: getComputedStyle(document.body).fontFamily };
  for (const axis of [layout.xaxis, layout.yaxis]) axis.title.font = { size: 13 };
  layout.hoverlabel = { bgcolor: background, bordercolor: "#808080", font: { color: ink } };
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls the page
  return figure;
}

const SETTINGS = { responsive: true, displayModeBar: false }; // its six buttons per chart would all be tab stops
const drawn = new Map(); // the figure of every plot, as text

// A name in lines of at most `letters` characters, escaped for Plotly.
function wrapped(name, letters) {
  const lines = [""];
  for (const word of name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= letters) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}

// The legend stands beside the chart if there is room, and below it otherwise: the chart grows by its height.
function placeLegend(plot, { data, layout }) {
  const named = data.filter((trace) => trace.name);
  const shown = named.filter((trace) => trace.showlegend !== false);
  const beside = plot.clientWidth >= 480 && !data.some((trace) => trace.colorbar);
  const letters = beside ? Math.max(16, plot.clientWidth / 30) : plot.clientWidth / 7.5 - 6;
  let height = 0;
  for (const trace of named) {
    const lines = wrapped(trace.name, letters);
    trace.name = lines.join("<br>");
    if (shown.includes(trace)) height += 13 + 17 * lines.length;
  }
  layout.showlegend = shown.length > 1;
  plot.style.setProperty("--legend", layout.showlegend && !beside ? `${height}px` : "0px");
  plot.style.setProperty("min-height", layout.showlegend && beside ? `${height + 60}px` : "0px");
  if (beside) {
    layout.legend = { orientation: "v", x: 1.02, xanchor: "left", y: 1, yanchor: "top", traceorder: "normal" };
  } else if (layout.showlegend) {
    layout.margin.b = 50 + height;
    layout.legend = { orientation: "v", x: 0, yref: "container", y: 0, yanchor: "bottom", traceorder: "normal" };
  }
}

async function draw(plot) {
  const figure = coloured(drawn.get(plot), isDark());
  placeLegend(plot, figure);
  if (paper.matches) Object.assign(figure.layout, { width: plot.clientWidth, height: plot.clientHeight });
  await Plotly.react(plot, figure.data, figure.layout, SETTINGS);
}

async function drawAll() {
  for (const plot of drawn.keys()) await draw(plot);
  root.dataset.drawn = paper.matches ? "paper" : isDark() ? "dark" : "light";
}

async function start() {
  if (!("DecompressionStream" in window)) {
    throw new Error("this browser is too old: it lacks DecompressionStream");
  }
  const charts = JSON.parse(await unpack("charts"));
  for (const link of document.querySelectorAll("a.csv")) {
    link.href = URL.createObjectURL(new Blob([charts[link.dataset.chart].csv], { type: "text/csv" }));
    link.hidden = false;
  }
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  root.classList.add("drawing");
  for (const plot of document.querySelectorAll(".plot")) {
    const { data, layout } = charts[plot.dataset.chart];
    drawn.set(plot, JSON.stringify({ data, layout }));
  }
  await drawAll();
}

function showTheme() {
  const button = document.getElementById("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

// Everything is unfolded for printing.
function unfold() {
  for (const part of document.querySelectorAll("details")) {
    if (paper.matches && !part.open) {
      part.open = true;
      part.dataset.unfolded = "";
    } else if (!paper.matches && part.dataset.unfolded !== undefined) {
      part.open = false;
      delete part.dataset.unfolded;
    }
  }
}

function changed() {
  unfold();
  showTheme();
  drawing = drawing.then(drawAll).catch(complain);
}

function complain(error) {
  const trouble = document.getElementById("trouble");
  trouble.textContent = `The charts cannot be drawn: ${error.message}.`;
  trouble.hidden = false;
}

function value(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}

function sort(table, column) {
  const head = table.tHead.rows[0].cells[column];
  const up = head.getAttribute("aria-sort") === "descending" || !head.hasAttribute("aria-sort") && !head.classList.contains("number");
  const sign = up ? 1 : -1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => sign * compare(value(a, column), value(b, column)));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sorts")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(table, column));
    head.replaceChildren(button);
  });
}

const button = document.getElementById("theme");
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  remember(root.dataset.theme);
  changed();
});
dark.addEventListener("change", changed);
paper.addEventListener("change", changed);
showTheme();

let drawing = start().catch(complain); // redraws wait for one another
