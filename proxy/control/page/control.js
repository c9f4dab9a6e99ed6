// @ts-check
/** The operator's word: asked for twice, and with the admin token where specswitch wants one. */

import { ADMIN_STATES, CONTROLS } from "./words.js";

/** @typedef {import("./words.js").State} State */
/** @typedef {{path: string, body: Record<string, string>, title: string, means: string, yes: string}} Change */

const SECONDS = 10;

/** @param {string} id @returns {HTMLElement} */
function element(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

export class Operator {
  /** @param {(state: State) => void} changed  told of the state after a change */
  constructor(changed) {
    this.changed = changed;
    /** Nowhere else than here: not in storage, not in the address. */
    this.token = "";
    /** @type {Change | null} */
    this.change = null;
    this.asked = 0;
    this.dialog = /** @type {HTMLDialogElement} */ (element("ask"));
    this.yes = /** @type {HTMLButtonElement} */ (element("ask-yes"));
    this.field = /** @type {HTMLInputElement} */ (element("token"));
    element("ask-no").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.forget());
    element("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send();
    });
  }

  /** @param {string} word */
  control(word) {
    const means = CONTROLS[/** @type {keyof typeof CONTROLS} */ (word)];
    this.ask({
      path: "admin/control",
      body: { control: word },
      title: `Set control to ${word}?`,
      means: `${means} It holds from the next request on, until the next word or a restart; what runs is not moved.`,
      yes: `Set to ${word}`,
    });
  }

  /** @param {string} name @param {string} word */
  upstream(name, word) {
    const means = ADMIN_STATES[/** @type {keyof typeof ADMIN_STATES} */ (word)];
    this.ask({
      path: `admin/upstreams/${name}`,
      body: { admin_state: word },
      title: `Set ${name} to ${word}?`,
      means: `${word}: ${means}. What runs there is not cut.`,
      yes: `Set to ${word}`,
    });
  }

  /** @param {Change} change */
  ask(change) {
    this.change = change;
    element("ask-title").textContent = change.title;
    element("ask-means").textContent = change.means;
    this.yes.textContent = change.yes;
    this.dialog.showModal();
    element("ask-no").focus();
  }

  forget() {
    this.change = null;
    this.asked += 1;
    this.field.value = "";
    this.yes.disabled = false;
    element("ask-token").hidden = true;
    element("ask-wrong").textContent = "";
  }

  async send() {
    const { change, asked } = this;
    if (change === null || this.yes.disabled) return;
    if (this.field.value !== "") this.token = this.field.value.trim();
    this.yes.disabled = true;
    element("ask-wrong").textContent = "";
    const wrong = await this.put(change);
    if (asked !== this.asked) return; // the dialog has been left meanwhile
    this.yes.disabled = false;
    if (wrong === null) this.dialog.close();
    else element("ask-wrong").textContent = wrong;
  }

  /** @param {Change} change @returns {Promise<string | null>} what is wrong, null if it holds */
  async put(change) {
    /** @type {Record<string, string>} */
    const headers = { "content-type": "application/json" };
    if (this.token !== "") headers.authorization = `Bearer ${this.token}`;
    let answer;
    try {
      const signal = AbortSignal.timeout(SECONDS * 1000);
      answer = await fetch(change.path, { method: "PUT", headers, body: JSON.stringify(change.body), credentials: "omit", signal });
      if (answer.ok) {
        this.changed(await answer.json());
        return null;
      }
    } catch (error) {
      if (error instanceof TypeError && /[^\x20-\x7e]/.test(this.token)) return this.wrongToken();
      return "specswitch did not answer. Whether it heard is not known: see what the page says.";
    }
    if (answer.status === 401) return this.wrongToken();
    return refusal(answer);
  }

  /** @returns {string} */
  wrongToken() {
    const given = this.token !== "";
    this.token = "";
    this.field.value = "";
    element("ask-token").hidden = false;
    this.field.focus();
    return given ? "That is not the admin token." : "This needs the admin token.";
  }
}

/** @param {Response} answer @returns {Promise<string>} */
async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return `Refused: ${String(error.message)}.`;
  } catch {
    return `Refused, with status ${answer.status}.`;
  }
}
