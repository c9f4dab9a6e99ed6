// @ts-check
/** The last 15 minutes as this page has heard of them; it outlives a restart of specswitch. */

import { NAMES } from "./words.js";

/** @typedef {import("./words.js").Name} Name */
/** @typedef {{requests: number, seconds: number}} Sum */
/** @typedef {{time: string, at: number, to: Name, reason: string, in_flight: number}} Switch */

/**
 * One second, or several put together.
 * @typedef {object} Sample
 * @property {number} t  when it ended, on this page's own clock, in seconds
 * @property {Name} mode
 * @property {number | null} offered
 * @property {Record<Name, number>} inFlight
 * @property {Record<Name, Sum>} ttft
 * @property {Record<Name, Sum>} tpot
 */

/** @typedef {{in_flight: number[], time_to_first_token: Times, time_per_output_token: Times}} Columns */
/** @typedef {{requests: number[], seconds: number[]}} Times */

/**
 * GET /admin/history.
 * @typedef {object} Answer
 * @property {string} started
 * @property {number} now
 * @property {number[]} at
 * @property {Name[]} mode
 * @property {(number | null)[]} offered
 * @property {Record<Name, Columns>} upstreams
 * @property {Switch[]} switches
 */

export const SECONDS = 900;
const SWITCHES = 50;
const SET_SECONDS = 5;

export class History {
  constructor() {
    /** @type {Sample[]} */
    this.samples = [];
    /** @type {(Switch & {t: number})[]} newest first */
    this.switches = [];
    /** Which process the seconds below are of. */
    this.started = "";
    /** When that one began, on this page's own clock: the two need not tell the same time of day. */
    this.began = 0;
    /** The end of the last second that was heard of, on that process's clock. */
    this.last = -1;
  }

  /** @param {string} started of the process that answers @returns {number} what to ask for */
  after(started) {
    return started === this.started ? this.last : -1;
  }

  /** @param {Answer} answer @param {number} now  this page's clock, in seconds */
  add(answer, now) {
    const began = now - answer.now;
    if (answer.started === this.started) {
      this.shift(began - this.began);
    } else {
      this.started = answer.started;
      this.last = -1;
    }
    this.began = began;
    answer.at.forEach((at, i) => {
      if (at > this.last) this.samples.push(sample(answer, i, this.began + at));
    });
    this.last = Math.max(this.last, ...answer.at.slice(-1));
    this.samples = this.samples.filter((each) => each.t > now - SECONDS - 5);
    const known = new Set(this.switches.map((each) => each.time));
    const news = answer.switches.filter((each) => !known.has(each.time));
    for (const each of news.toReversed()) this.switches.unshift({ ...each, t: this.began + each.at });
    this.switches.splice(SWITCHES);
  }

  /** Somebody has set this page's clock, unless it is only the way of an answer. @param {number} by  seconds */
  shift(by) {
    if (Math.abs(by) < SET_SECONDS) return;
    for (const each of [...this.samples, ...this.switches]) each.t += by;
  }

  /**
   * @param {number} from @param {number} width  seconds in one
   * @returns {Sample[]} samples put together, on a grid that does not move with `now`
   */
  bins(from, width) {
    /** @type {Map<number, Sample>} */
    const found = new Map();
    for (const each of this.samples) {
      if (each.t <= from) continue;
      const slot = Math.floor(each.t / width);
      const before = found.get(slot);
      found.set(slot, before === undefined ? each : both(before, each));
    }
    return [...found.values()];
  }

  /** @param {number} from @param {number} to @returns {Sample | null} all of that time in one */
  between(from, to) {
    const within = this.samples.filter((each) => each.t > from && each.t <= to);
    return within.length === 0 ? null : within.reduce(both);
  }
}

/** @param {Answer} answer @param {number} i @param {number} t @returns {Sample} */
function sample(answer, i, t) {
  const { spec, base } = answer.upstreams;
  /** @param {Times} times @returns {Sum} */
  const sum = (times) => ({ requests: times.requests[i], seconds: times.seconds[i] });
  return {
    t,
    mode: answer.mode[i],
    offered: answer.offered[i],
    inFlight: { spec: spec.in_flight[i], base: base.in_flight[i] },
    ttft: { spec: sum(spec.time_to_first_token), base: sum(base.time_to_first_token) },
    tpot: { spec: sum(spec.time_per_output_token), base: sum(base.time_per_output_token) },
  };
}

/** @param {Sample} a @param {Sample} b  the later @returns {Sample} times added, peaks kept */
function both(a, b) {
  const more = total(b) >= total(a) ? b : a;
  return {
    t: b.t,
    mode: b.mode,
    offered: a.offered === null || b.offered === null ? b.offered : Math.max(a.offered, b.offered),
    inFlight: more.inFlight,
    ttft: added(a.ttft, b.ttft),
    tpot: added(a.tpot, b.tpot),
  };
}

/** @param {Record<Name, Sum>} a @param {Record<Name, Sum>} b @returns {Record<Name, Sum>} */
function added(a, b) {
  const [spec, base] = NAMES.map((name) => ({
    requests: a[name].requests + b[name].requests,
    seconds: a[name].seconds + b[name].seconds,
  }));
  return { spec, base };
}

/** @param {Sample} each @returns {number} */
export function total(each) {
  return each.inFlight.spec + each.inFlight.base;
}

/** @param {Sum} sum @returns {number | null} */
export function mean(sum) {
  return sum.requests === 0 ? null : sum.seconds / sum.requests;
}
