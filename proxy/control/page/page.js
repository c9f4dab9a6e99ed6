// @ts-check
/**
 * The status page: asks specswitch once a second and shows what it says. All of it is set as text.
 *
 * It asks and does not listen: the admin listener ends what has not been answered for 15 seconds
 * and holds few connections; one question after the other needs one of them, and none that is kept.
 */

import { Operator } from "./control.js";
import { History } from "./history.js";
import { Plots } from "./plots.js";
import * as words from "./words.js";

/** @typedef {import("./words.js").State} State */
/** @typedef {import("./words.js").Name} Name */
/** @typedef {[string, string][]} Facts */

const SHOWN_SECONDS = 1;
const HIDDEN_SECONDS = 30;
const LONGEST_SECONDS = 4;
const PATIENCE_SECONDS = 5;
const SWITCHES = 12;

/** Of the day, since only that goes on while a machine sleeps; in seconds. */
const now = () => Date.now() / 1000;
const history = new History();
const plots = new Plots(history, now);
const operator = new Operator((state) => {
  changes += 1;
  show(state);
});

/** What was said last to those who listen. */
let told = "";
/** The version that this page came with; null before the first answer. @type {string | null} */
let version = null;
let failures = 0;
/** Changes made here; an answer that was asked for before the last one is old news. */
let changes = 0;
/** @type {Date | null} */
let lost = null;
/** @type {number | undefined} */
let timer;
let asking = false;

/** @param {string} id @returns {HTMLElement} */
function element(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** @param {Element} where @param {string} text  left alone where it is the same, so that it can be selected */
function put(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

/** @param {Element} list @param {string[]} texts */
function putAll(list, texts) {
  while (list.children.length > texts.length) list.lastElementChild?.remove();
  texts.forEach((text, i) => put(list.children[i] ?? list.appendChild(document.createElement("li")), text));
  /** @type {HTMLElement} */ (list).hidden = texts.length === 0;
}

/** @param {Element} list @param {Facts} facts  the same names in the same order each time */
function putFacts(list, facts) {
  facts.forEach(([name, value], i) => {
    const row = list.children[i] ?? list.appendChild(document.createElement("div"));
    if (row.children.length === 0) row.append(document.createElement("dt"), document.createElement("dd"));
    put(row.children[0], name);
    put(row.children[1], value);
  });
}

/** @param {Element} group @param {string} chosen */
function press(group, chosen) {
  for (const button of group.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === chosen));
  }
}

/** @param {State} state */
function show(state) {
  showMode(state);
  showControl(state);
  const alerts = words.alerts(state);
  if (version !== null && version !== state.version) alerts.push("specswitch is another version now: load this page again.");
  version ??= state.version;
  putAll(element("alerts"), alerts);
  for (const name of words.NAMES) showUpstream(state, name);
  showCalibration(state);
  showSwitches();
  put(element("version"), `${state.version}, up ${words.duration(now() - history.began)}`);
  plots.show(state);
  say([words.modeSentence(state), ...alerts].join(" "));
}

/** @param {string} text  spoken only when it is news; figures never are */
function say(text) {
  if (text !== told) put(element("said"), text);
  told = text;
}

/** @param {State} state */
function showMode(state) {
  const mode = element("mode");
  put(mode, state.mode);
  mode.className = state.mode;
  put(element("why"), words.modeSentence(state));
  const differs = state.mode_wanted !== state.mode;
  put(element("wanted"), differs ? `By load alone it would be ${state.mode_wanted}.` : "");
  document.title = `${state.mode} · specswitch`;
  const { crossover, in_flight: counts, offered } = state;
  const last = history.switches.at(0)?.time ?? "";
  const since = new Date(Math.max(Date.parse(state.started), Date.parse(last) || 0));
  putFacts(element("load"), [
    ["In flight", `${counts.spec + counts.base}, N* ${words.figure(crossover.in_flight)}`],
    ["Offered, tokens/s", `${words.figure(offered.fast, 0)}, λ* ${words.figure(crossover.tokens_per_second, 0)}`],
    ["Waiting here", String(state.queue_depth)],
    [`On ${state.mode} since`, words.clock(since)],
  ]);
}

/** @param {State} state */
function showControl(state) {
  press(element("control-buttons"), state.control);
  put(element("control-means"), words.CONTROLS[state.control]);
  put(element("control-set"), `Set by ${state.control_set_by} at ${words.clock(new Date(state.control_set_at))}.`);
}

/** @param {State} state @param {Name} name */
function showUpstream(state, name) {
  const upstream = state.upstreams[name];
  const panel = element(`upstream-${name}`);
  const find = (/** @type {string} */ what) => /** @type {HTMLElement} */ (panel.querySelector(what));
  put(find(".health"), words.healthSentence(upstream));
  find(".health").dataset.health = upstream.health;
  const probe = upstream.probe_fault === null ? [] : [`Last probe: ${upstream.probe_fault}`];
  putAll(find(".faults"), [...upstream.faults, ...probe]);
  const age = upstream.signal_age;
  const cap = upstream.cap === null ? "no cap" : `cap ${upstream.cap}`;
  putFacts(find(".facts"), [
    ["In flight", `${state.in_flight[name]}, ${cap}`],
    ["Engine runs", words.figure(upstream.running)],
    ["Engine queues", words.figure(upstream.waiting)],
    ["Acceptance length", words.figure(upstream.acceptance_length, 2)],
    ["Last sign", age === null ? words.UNKNOWN : `${words.duration(age)} ago`],
    ["Version", upstream.version ?? words.UNKNOWN],
    ["Address", upstream.url],
  ]);
  press(find(".choice"), upstream.admin_state);
  put(find(".means"), `${upstream.admin_state}: ${words.ADMIN_STATES[upstream.admin_state]}`);
}

/** @param {State} state */
function showCalibration(state) {
  const { calibration, crossover } = state;
  put(element("calibration"), words.calibrationSentence(state));
  putAll(element("calibration-faults"), calibration?.faults ?? []);
  const drift = (/** @type {Name} */ name) => words.figure(calibration?.drift[name] ?? null, 2);
  putFacts(element("calibration-facts"), [
    ["N*", crossover.in_flight === null ? words.UNKNOWN : `${words.figure(crossover.in_flight)} in flight`],
    ["λ*", crossover.tokens_per_second === null ? words.UNKNOWN : `${words.figure(crossover.tokens_per_second, 0)} tokens/s`],
    ["Made", calibration === null ? words.UNKNOWN : words.clock(new Date(calibration.created))],
    ["Drift", `spec ${drift("spec")}, base ${drift("base")}`],
  ]);
}

function showSwitches() {
  const shown = history.switches.slice(0, SWITCHES);
  element("switches").hidden = shown.length === 0;
  element("no-switches").hidden = shown.length > 0;
  const body = /** @type {HTMLTableSectionElement} */ (element("switches").querySelector("tbody"));
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach((each, i) => {
    const row = body.rows[i] ?? body.insertRow();
    while (row.cells.length < 4) row.insertCell();
    const [at, to, why, inFlight] = row.cells;
    put(at, words.clock(new Date(each.time)));
    put(to, each.to);
    to.className = `key ${each.to}`;
    put(why, words.REASONS[each.reason] ?? each.reason);
    put(inFlight, String(each.in_flight));
    inFlight.className = "number";
  });
}

/** @param {string} path @returns {Promise<any>} */
async function get(path) {
  const signal = AbortSignal.timeout(PATIENCE_SECONDS * 1000);
  const answer = await fetch(path, { signal, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

/** @returns {Promise<State | null>} the state, with the history brought up to date; null for no answer */
async function ask() {
  try {
    /** @type {State} */
    const state = await get("admin/state");
    history.add(await get(`admin/history?after=${history.after(state.started)}`), now());
    return state;
  } catch {
    return null;
  }
}

async function look() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const before = changes;
  try {
    const state = await ask();
    if (state === null) showSilence();
    else if (before === changes) showAnswer(state);
  } finally {
    asking = false;
    timer = setTimeout(look, 1000 * pause());
  }
}

/** @param {State} state */
function showAnswer(state) {
  failures = 0;
  lost = null;
  document.documentElement.dataset.answers = "yes";
  put(element("answers"), "Live");
  show(state);
}

/** @returns {number} seconds until the next look */
function pause() {
  if (document.hidden) return HIDDEN_SECONDS;
  return Math.min(SHOWN_SECONDS * 2 ** Math.max(0, failures - 1), LONGEST_SECONDS);
}

function showSilence() {
  failures += 1;
  lost ??= new Date();
  document.documentElement.dataset.answers = "no";
  document.title = "no answer · specswitch";
  put(element("answers"), `No answer since ${words.clock(lost)}; asking again`);
  say("specswitch does not answer. What is shown is what it said last.");
  plots.draw();
}

function prepare() {
  const template = /** @type {HTMLTemplateElement} */ (element("upstream"));
  for (const name of words.NAMES) {
    const panel = element(`upstream-${name}`);
    panel.append(template.content.cloneNode(true));
    const choice = /** @type {HTMLElement} */ (panel.querySelector(".choice"));
    choice.setAttribute("aria-label", `Admin state of ${name}`);
    choice.addEventListener("click", (event) => {
      const button = /** @type {Element} */ (event.target).closest("button");
      if (button !== null) operator.upstream(name, button.value);
    });
  }
  element("control-buttons").addEventListener("click", (event) => {
    const button = /** @type {Element} */ (event.target).closest("button");
    if (button !== null) operator.control(button.value);
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void look();
  });
}

prepare();
element("needs").remove();
document.querySelector("main")?.removeAttribute("hidden");
put(element("answers"), "Asking");
void look();
