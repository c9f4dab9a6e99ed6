// @ts-check
/** What the closed sets of the state mean, in sentences. Text only: nothing here touches the page. */

/** @typedef {"spec" | "base"} Name */
/** @typedef {"auto" | "spec" | "base" | "observe"} Control */
/** @typedef {"ready" | "drain" | "maint"} AdminState */
/** @typedef {number | "Infinity" | null} Numeral */

/**
 * @typedef {object} Upstream
 * @property {string} url
 * @property {AdminState} admin_state
 * @property {"healthy" | "ejected" | "probation"} health
 * @property {"probe" | "requests" | "stalled" | "misconfigured" | null} cause
 * @property {string[]} faults
 * @property {string | null} probe_fault
 * @property {number | null} cap
 * @property {number | null} running
 * @property {number | null} waiting
 * @property {number | null} acceptance_length
 * @property {number | null} signal_age
 * @property {string | null} version
 */

/**
 * @typedef {object} Calibration
 * @property {string} created
 * @property {string} sentence
 * @property {boolean} valid
 * @property {string[]} faults
 * @property {Record<Name, number | null>} drift
 */

/**
 * @typedef {object} State
 * @property {Name} mode
 * @property {Name} mode_wanted
 * @property {string} mode_reason
 * @property {"shared" | "separate"} topology
 * @property {Control} control
 * @property {string} control_set_by
 * @property {string} control_set_at
 * @property {{in_flight: Numeral, tokens_per_second: Numeral}} crossover
 * @property {Record<Name, number>} in_flight
 * @property {number} queue_depth
 * @property {{fast: number | null, slow: number | null}} offered
 * @property {Record<Name, Upstream>} upstreams
 * @property {Calibration | null} calibration
 * @property {boolean} draining
 * @property {string} version
 * @property {string} started
 */

export const UNKNOWN = "–";

/** @type {readonly Name[]} */
export const NAMES = ["spec", "base"];

/** Why the mode is, or became, what it is. @type {Record<string, string>} */
export const REASONS = {
  in_flight: "more is in flight than speculation pays for",
  rate: "more work is offered than speculation pays for",
  calm: "load has been low for a while",
  engine: "spec itself says that it has too much, or too few of its guesses hold",
  health: "the other upstream cannot be used",
  control: "the operator said so",
  flap: "the mode has changed too often, and is held",
  uncalibrated: "it is not known when speculation pays",
};

/** @type {Record<Control, string>} */
export const CONTROLS = {
  auto: "The mode decides, by load.",
  spec: "All that may be decoded speculatively goes to spec.",
  base: "All goes to base: speculation is off.",
  observe: "All goes to base, and what the mode would be is shown.",
};

/** @type {Record<AdminState, string>} */
export const ADMIN_STATES = {
  ready: "in use",
  drain: "takes nothing new, is still probed",
  maint: "takes nothing new, is not probed",
};

/** @type {Record<string, string>} */
export const HEALTH = {
  healthy: "healthy",
  ejected: "ejected",
  probation: "in probation: one request at a time",
};

/** @type {Record<string, string>} */
export const CAUSES = {
  probe: "probes failed in a row",
  requests: "requests failed in a row",
  stalled: "it has work and gives no sign of life",
  misconfigured: "it is not what its role or its partner asks for",
};

/** @param {State} state @param {Name} name @returns {boolean} whether it takes requests at all */
export function isUsable(state, name) {
  const upstream = state.upstreams[name];
  return upstream.admin_state === "ready" && upstream.health !== "ejected";
}

/** @param {State} state @returns {string} where new requests go, and why */
export function modeSentence(state) {
  if (!NAMES.some((name) => isUsable(state, name))) return "Neither upstream can be used.";
  const { mode, mode_reason: reason, topology } = state;
  const most = state.crossover.in_flight;
  let because = REASONS[reason] ?? reason;
  if (reason === "health") because = unusable(state, mode === "spec" ? "base" : "spec");
  if (reason === "in_flight" && typeof most === "number" && most < 1) {
    because = "speculation does not pay, not even for one";
  }
  if (mode === "spec" && topology === "separate") {
    return `New requests go to spec, and to base what is too much for it: ${because}.`;
  }
  return `New requests go to ${mode}: ${because}.`;
}

/** @param {State} state @param {Name} name @returns {string} why it cannot be used */
function unusable(state, name) {
  const upstream = state.upstreams[name];
  if (upstream.admin_state !== "ready") return `${name} is set to ${upstream.admin_state}`;
  if (upstream.health !== "ejected") return `${name} has only just come back`;
  return upstream.cause === null ? `${name} is not there yet` : `${name} is ejected`;
}

/** @param {Upstream} upstream @returns {string} why it is ejected */
function why(upstream) {
  return upstream.cause === null ? "no good probe so far" : (CAUSES[upstream.cause] ?? upstream.cause);
}

/** @param {Upstream} upstream @returns {string} its health, with the cause */
export function healthSentence(upstream) {
  const word = HEALTH[upstream.health] ?? upstream.health;
  if (upstream.health !== "ejected") return word;
  return upstream.cause === null ? `not there yet: ${why(upstream)}` : `${word}: ${why(upstream)}`;
}

/** @param {State} state @returns {string[]} what an operator should know at once */
export function alerts(state) {
  const found = [];
  if (state.draining) found.push("Draining: specswitch is shutting down and takes nothing new.");
  const down = NAMES.filter((name) => !isUsable(state, name));
  if (down.length === NAMES.length) {
    found.push("Neither upstream can be used: requests are refused, or wait.");
  }
  for (const name of down) found.push(`${name} takes no requests: ${whyDown(state.upstreams[name])}.`);
  if (state.calibration !== null && !state.calibration.valid) {
    found.push("The calibration is not of these servers, so everything goes to base.");
  } else if (state.crossover.in_flight === null) {
    found.push("Not calibrated: everything goes to base until specswitch calibrate has run.");
  }
  return found;
}

/** @param {Upstream} upstream @returns {string} */
function whyDown(upstream) {
  if (upstream.admin_state !== "ready") return `the operator has set it to ${upstream.admin_state}`;
  return why(upstream);
}

/** @param {State} state @returns {string} what is known of where speculation pays */
export function calibrationSentence(state) {
  if (state.calibration !== null) return state.calibration.sentence;
  if (state.crossover.in_flight === null) return "None yet: specswitch calibrate measures when speculation pays.";
  return "None: N* is set by hand (policy.crossover).";
}

/** @param {Numeral} value @param {number} digits @returns {string} */
export function figure(value, digits = 1) {
  if (value === null) return UNKNOWN;
  if (value === "Infinity") return "∞";
  return Number.isInteger(value) || value >= 100 ? Math.round(value).toString() : value.toFixed(digits);
}

/** @param {number | null} seconds @returns {string} a time of a request */
export function span(seconds) {
  if (seconds === null) return UNKNOWN;
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** @param {number} seconds @returns {string} a length of time, for people */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** @param {number} n @returns {string} */
function two(n) {
  return String(n).padStart(2, "0");
}

/** @param {Date} day @returns {string} the time of day here, with the date unless it is today */
export function clock(day) {
  const time = `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}`;
  if (day.toDateString() === new Date().toDateString()) return time;
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${time}`;
}
