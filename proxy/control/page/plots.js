// @ts-check
/** Plots of the last 15 minutes, by hand in SVG: as many pixels as there is room for, no library. */

import { SECONDS, mean, total } from "./history.js";
import { NAMES, UNKNOWN, clock, duration, figure, span } from "./words.js";

/** @typedef {import("./history.js").History} History */
/** @typedef {import("./history.js").Sample} Sample */
/** @typedef {import("./words.js").Name} Name */
/** @typedef {import("./words.js").State} State */
/** @typedef {{x: number, y: number}} Point */
/** @typedef {{name: Name | null, text: string}} Word  a part of a reading, with the mark of an upstream */

/**
 * @typedef {object} Kind
 * @property {string} id
 * @property {boolean} stacked  counts on top of each other, or lines
 * @property {(sample: Sample) => (number | null)[]} values  for spec and base, or for both as one
 * @property {(state: State) => {value: number | null, label: string}} limit
 * @property {(value: number) => string} tick
 * @property {number} least  that the axis reaches
 * @property {(sample: Sample | null, state: State | null) => Word[]} reading  of a time, or of now
 */

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 50;
const BOTTOM = 18;
const TOP = 10;
const HEIGHT = 132;
const BAND = 24;
const PIXELS = 3;
const MEAN_SECONDS = 60;
/** Seconds that the plots may reach back, and where they say so: a young process has no 15 minutes. */
const REACHES = new Map([
  [180, [3, 2, 1, 0]],
  [300, [5, 4, 3, 2, 1, 0]],
  [600, [10, 5, 0]],
  [SECONDS, [15, 10, 5, 0]],
]);

/** @param {import("./words.js").Numeral} value @returns {number | null} what can be drawn */
function drawable(value) {
  return typeof value === "number" ? value : null;
}

/** @param {(s: Sample) => Record<Name, import("./history.js").Sum>} of @returns {Kind["reading"]} */
function means(of) {
  return (sample) =>
    NAMES.map((name) => ({ name, text: span(sample === null ? null : mean(of(sample)[name])) }));
}

/** @param {number} value @returns {string} */
function shortSpan(value) {
  return value >= 1 ? `${+value.toFixed(1)} s` : `${+(value * 1000).toFixed(1)} ms`;
}

/** @type {Kind[]} */
const KINDS = [
  {
    id: "in-flight",
    stacked: true,
    values: (s) => [s.inFlight.spec, s.inFlight.base],
    limit: ({ crossover }) => ({ value: drawable(crossover.in_flight), label: `N* ${figure(crossover.in_flight)}` }),
    tick: String,
    least: 4,
    reading: (s, state) => {
      const counts = state === null ? s?.inFlight : state.in_flight;
      return NAMES.map((name) => ({ name, text: counts === undefined ? UNKNOWN : String(counts[name]) }));
    },
  },
  {
    id: "offered",
    stacked: false,
    values: (s) => [s.offered],
    limit: ({ crossover: { tokens_per_second: rate } }) => ({ value: drawable(rate), label: `λ* ${figure(rate, 0)}` }),
    tick: String,
    least: 10,
    reading: (s, state) => {
      const value = state === null ? (s?.offered ?? null) : state.offered.fast;
      return [{ name: null, text: value === null ? UNKNOWN : value.toFixed(0) }];
    },
  },
  {
    id: "ttft",
    stacked: false,
    values: (s) => NAMES.map((name) => mean(s.ttft[name])),
    limit: () => ({ value: null, label: "" }),
    tick: shortSpan,
    least: 0.02,
    reading: means((s) => s.ttft),
  },
  {
    id: "tpot",
    stacked: false,
    values: (s) => NAMES.map((name) => mean(s.tpot[name])),
    limit: () => ({ value: null, label: "" }),
    tick: shortSpan,
    least: 0.004,
    reading: means((s) => s.tpot),
  },
];

/** @param {string} name @param {Record<string, string | number>} attributes @param {string} [text] */
function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/** @param {number} value @returns {number} the next number that halves well */
function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const found = [1, 1.2, 1.6, 2, 2.4, 3, 4, 6, 8, 10].find((each) => each * power >= value * (1 - 1e-9));
  return (found ?? 10) * power;
}

export class Plots {
  /** @param {History} history @param {() => number} now  this page's clock, in seconds */
  constructor(history, now) {
    this.history = history;
    this.now = now;
    /** @type {State | null} */
    this.state = null;
    /** How long ago it is that one points at; null for now. @type {number | null} */
    this.ago = null;
    /** How far the plots reach back, in seconds. */
    this.reach = SECONDS;
    this.past = /** @type {HTMLElement} */ (document.getElementById("past"));
    this.title = /** @type {HTMLElement} */ (document.getElementById("past-title"));
    this.when = /** @type {HTMLElement} */ (document.getElementById("when"));
    this.cursor = /** @type {HTMLInputElement} */ (document.getElementById("cursor"));
    /** @type {Map<string, SVGElement>} */
    this.drawings = new Map();
    for (const id of ["band", ...KINDS.map((kind) => kind.id)]) this.prepare(id);
    this.cursor.addEventListener("input", () => this.point(-this.cursor.valueAsNumber || null));
    this.cursor.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.past);
  }

  /** @param {string} id */
  prepare(id) {
    const drawing = /** @type {SVGElement} */ (shape("svg", { role: "img" }));
    this.drawings.set(id, drawing);
    document.getElementById(id)?.append(drawing);
    drawing.addEventListener("pointermove", (event) => {
      const { left, width } = drawing.getBoundingClientRect();
      const share = (event.clientX - left - LEFT) / (width - LEFT);
      this.point(share < 0 ? null : Math.round((1 - share) * this.reach));
    });
    drawing.addEventListener("pointerleave", () => this.point(null));
  }

  /** @param {number | null} ago  seconds; null for now */
  point(ago) {
    this.ago = ago;
    this.draw();
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    this.draw();
  }

  draw() {
    const now = this.now();
    const ago = this.ago;
    const age = now - (this.history.samples.at(0)?.t ?? now);
    this.reach = [...REACHES.keys()].find((each) => each >= age) ?? SECONDS;
    this.cursor.min = String(-this.reach);
    this.title.textContent = `The last ${this.reach / 60} minutes`;
    const then = ago === null ? "" : `${duration(ago)} ago, at ${clock(new Date(Date.now() - ago * 1000))}`;
    this.when.textContent = then;
    this.cursor.setAttribute("aria-valuetext", then || "now");
    this.drawBand(now);
    for (const kind of KINDS) this.drawPlot(kind, now);
  }

  /** @param {SVGElement} drawing @param {number} height @returns {number} its width */
  resize(drawing, height) {
    const width = Math.max(160, Math.floor(drawing.parentElement?.clientWidth ?? 0));
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("width", String(width));
    drawing.setAttribute("height", String(height));
    return width;
  }

  /** @param {number} width @returns {number} whole seconds of one bin */
  seconds(width) {
    return Math.max(1, Math.ceil(this.reach / ((width - LEFT) / PIXELS)));
  }

  /** @param {number} now */
  drawBand(now) {
    const drawing = /** @type {SVGElement} */ (this.drawings.get("band"));
    const width = this.resize(drawing, BAND);
    const x = across(now, width, this.reach);
    const from = now - this.reach;
    const parts = [hatching()];
    for (const run of runs(this.history.samples.filter((s) => s.t > from))) {
      const left = Math.max(LEFT, x(run.from));
      const size = { x: left, y: 0, width: Math.max(1, x(run.to) - left), height: BAND };
      parts.push(shape("rect", { class: `fill ${run.mode}`, ...size }));
      if (run.mode === "base") parts.push(shape("rect", { class: "hatch", fill: "url(#hatch)", ...size }));
      if (size.width > 44) parts.push(shape("text", { class: "inside", x: left + 7, y: 16 }, run.mode));
    }
    const switches = this.history.switches.filter((s) => s.t > from);
    for (const each of switches) parts.push(upright(x(each.t), BAND, "mark"));
    if (this.ago !== null) parts.push(upright(x(now - this.ago), BAND, "pointer"));
    drawing.replaceChildren(...parts);
    const shown = this.at(now, 1);
    const word = this.ago === null ? this.state?.mode : shown?.mode;
    this.read("band", [{ name: word ?? null, text: word ?? UNKNOWN }]);
    drawing.setAttribute("aria-label", `Mode: ${word ?? "unknown"}; ${switches.length} switches in ${this.reach / 60} minutes`);
  }

  /** @param {Kind} kind @param {number} now */
  drawPlot(kind, now) {
    const drawing = /** @type {SVGElement} */ (this.drawings.get(kind.id));
    const width = this.resize(drawing, HEIGHT);
    const seconds = this.seconds(width);
    const bins = this.history.bins(now - this.reach, seconds);
    const limit = this.state === null ? { value: null, label: "" } : kind.limit(this.state);
    const peak = Math.max(0, ...bins.map((s) => (kind.stacked ? total(s) : Math.max(...kind.values(s).map(Number)))));
    // A limit far above what there is would press it flat; it is in the label all the same.
    const near = limit.value !== null && limit.value <= Math.max(4 * peak, 2 * kind.least);
    const most = niceAbove(Math.max(kind.least, peak * 1.05, near && limit.value ? limit.value * 1.15 : 0));
    const y = (/** @type {number} */ value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
    const x = across(now, width, this.reach);
    const parts = axes(width, this.reach, most, y, kind.tick);
    parts.push(...(kind.stacked ? areas(bins, x, y, seconds) : lines(kind, bins, x, y, seconds)));
    if (limit.value !== null) parts.push(...limitLine(near ? y(limit.value) : TOP, width, near, limit.label));
    if (this.ago !== null) parts.push(upright(x(now - this.ago), HEIGHT - BOTTOM, "pointer", TOP));
    drawing.replaceChildren(...parts);
    this.label(kind, drawing, now, seconds, peak, limit.label);
  }

  /** @param {Kind} kind @param {SVGElement} drawing @param {number} now @param {number} seconds @param {number} peak @param {string} limit */
  label(kind, drawing, now, seconds, peak, limit) {
    const state = this.ago === null && (kind.stacked || kind.id === "offered") ? this.state : null;
    const words = kind.reading(this.at(now, seconds), state);
    this.read(kind.id, words);
    const title = document.querySelector(`#${kind.id} .title`)?.textContent ?? "";
    const said = words.map(({ name, text }) => (name === null ? text : `${name} ${text}`)).join(", ");
    const bound = limit === "" ? "" : `; ${limit}`;
    drawing.setAttribute("aria-label", `${title}: ${said}; at most ${kind.tick(+peak.toPrecision(3))} in ${this.reach / 60} minutes${bound}`);
  }

  /** @param {number} now @param {number} seconds @returns {Sample | null} what is pointed at, or lately */
  at(now, seconds) {
    if (this.ago === null) return this.history.between(now - MEAN_SECONDS, now);
    return this.history.between(now - this.ago - Math.max(seconds, 2), now - this.ago);
  }

  /** @param {string} id @param {Word[]} words */
  read(id, words) {
    const reading = document.querySelector(`#${id} .reading`);
    reading?.replaceChildren(
      ...words.map(({ name, text }) => {
        const word = document.createElement("span");
        if (name !== null) word.className = `key ${name}`;
        word.textContent = name === null || name === text ? text : `${name} ${text}`;
        return word;
      }),
    );
  }
}

/** @param {number} now @param {number} width @param {number} reach @returns {(t: number) => number} */
function across(now, width, reach) {
  return (t) => Math.round((LEFT + (1 - (now - t) / reach) * (width - LEFT)) * 10) / 10;
}

/** @param {number} x @param {number} bottom @param {string} kind @param {number} [top] */
function upright(x, bottom, kind, top = 0) {
  return shape("line", { class: kind, x1: x, x2: x, y1: top, y2: bottom });
}

/** So that base is told from spec without colours. */
function hatching() {
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const pattern = shape("pattern", { id: "hatch", ...size });
  pattern.append(shape("rect", { class: "hatch-line", width: 2, height: 6 }));
  return pattern;
}

/** @param {Sample[]} samples @returns {{mode: Name, from: number, to: number}[]} */
function runs(samples) {
  /** @type {{mode: Name, from: number, to: number}[]} */
  const found = [];
  for (const { t, mode } of samples) {
    const last = found.at(-1);
    if (last !== undefined && last.mode === mode && t - last.to < 3) last.to = t;
    else found.push({ mode, from: last !== undefined && t - last.to < 3 ? last.to : t - 1, to: t });
  }
  return found;
}

/** @param {number} width @param {number} reach @param {number} most @param {(v: number) => number} y @param {(v: number) => string} tick */
function axes(width, reach, most, y, tick) {
  const parts = [];
  for (const value of [0, most / 2, most]) {
    parts.push(shape("line", { class: value === 0 ? "axis" : "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
    parts.push(shape("text", { class: "tick end", x: LEFT - 6, y: y(value) + 4 }, value === 0 ? "0" : tick(value)));
  }
  for (const minutes of REACHES.get(reach) ?? []) {
    const share = 1 - (minutes * 60) / reach;
    const x = LEFT + share * (width - LEFT);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    parts.push(shape("text", { class: `tick ${anchor}`, x, y: HEIGHT - 4 }, minutes === 0 ? "now" : `−${minutes} min`));
  }
  return parts;
}

/** @param {number} y @param {number} width @param {boolean} near @param {string} label */
function limitLine(y, width, near, label) {
  const text = shape("text", { class: "limit", x: LEFT + 4, y: near ? y - 4 : y + 8 }, near ? label : `↑ ${label}`);
  return near ? [shape("line", { class: "limit", x1: LEFT, x2: width, y1: y, y2: y }), text] : [text];
}

/** @param {Sample[]} bins @param {(t: number) => number} x @param {(v: number) => number} y @param {number} seconds */
function areas(bins, x, y, seconds) {
  const spec = [];
  const base = [];
  for (const each of bins) {
    const from = Math.max(LEFT, x(each.t - seconds));
    const to = x(each.t);
    const low = each.inFlight.spec;
    if (low > 0) spec.push(`M${from} ${y(0)}V${y(low)}H${to}V${y(0)}Z`);
    if (each.inFlight.base > 0) base.push(`M${from} ${y(low)}V${y(total(each))}H${to}V${y(low)}Z`);
  }
  const hatch = shape("path", { class: "hatch", fill: "url(#hatch)", d: base.join("") });
  return [shape("path", { class: "fill spec", d: spec.join("") }), shape("path", { class: "fill base", d: base.join("") }), hatch];
}

/** @param {Kind} kind @param {Sample[]} bins @param {(t: number) => number} x @param {(v: number) => number} y @param {number} seconds */
function lines(kind, bins, x, y, seconds) {
  const count = bins.length === 0 ? 0 : kind.values(bins[0]).length;
  const parts = [];
  for (let i = 0; i < count; i += 1) {
    const name = count === 1 ? "both" : NAMES[i];
    let path = "";
    let last = -Infinity;
    for (const bin of bins) {
      const value = kind.values(bin)[i];
      if (value === null) continue;
      const point = `${x(bin.t)} ${y(value).toFixed(1)}`;
      // A dot where nothing is near: a path of no length is drawn by its round ends.
      path += bin.t - last <= 3 * seconds + 1 ? `L${point}` : `M${point}h0`;
      last = bin.t;
    }
    parts.push(shape("path", { class: `line ${name}`, d: path }));
  }
  return parts;
}
