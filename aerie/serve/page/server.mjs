/* What the server is doing: asked of /health every second while something is awaited, else now and then. */

const BUSY_MS = 1000;
const QUIET_MS = 5000;
const TIMEOUT_MS = 8000;
const WAITING = new Set(["loading", "waiting", "unloading"]);

/* What a reader is told of the server: {text, done, total, isWrong, isReady}. An empty text: nothing to tell. health: the
   body of /health; null if there was no answer. */
export function describe(health, model = "") {
  const told = (text, more = {}) => ({text, done: 0, total: 0, isWrong: false, isReady: false, ...more});
  if (!health)
    return told("The server does not answer. If it was stopped, start it again with aerie serve: this page tries every second.",
      {isWrong: true});
  const names = Object.keys(health.models ?? {}), name = names.includes(model) ? model : names[0] ?? "";
  const progress = health.progress?.[name];
  if (progress) {
    const {title, done, total, what} = progress;
    const step = what ? ` (${what})` : "";
    return told(`${name}: ${title}, ${done} of ${total}${step}`, {done, total, isReady: health.models[name] === "loaded"});
  }
  if (health.models?.[name] === "waiting") return told(`${name} waits until other models leave enough memory.`);
  if (WAITING.has(health.models?.[name])) return told(`${name} is being loaded.`);
  if (health.error) return told(`The server says: ${health.error.message}`, {isWrong: true});
  return told("", {isReady: true});
}

export class Server {
  /* onChange: called with what `describe` gives, when it has changed. */
  constructor(onChange) {
    this.onChange = onChange;
    this.health = undefined;
    this.model = "";
    this.isAwaited = false;
    this.timer = 0;
    this.waiting = [];
    this.told = "";
    addEventListener("online", () => this.check());
    document.addEventListener("visibilitychange", () => document.hidden || this.check());
  }
  get state() {
    return this.health === undefined ? {text: "", isReady: true, isWrong: false} : describe(this.health, this.model);
  }
  /* Asks the server now, and goes on asking. */
  async check() {
    clearTimeout(this.timer);
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const response = await fetch("health", {signal, cache: "no-store"}).catch(() => null);
    this.health = response ? await response.json().catch(() => null) : null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), this.isAwaited || !this.state.isReady ? BUSY_MS : QUIET_MS);
    this.tell();
    if (this.health) for (const resume of this.waiting.splice(0)) resume();
  }
  tell() {
    const text = JSON.stringify([this.state, this.health?.models]);
    if (text === this.told) return;
    this.told = text;
    this.onChange(this.state);
  }
  /* Asks every second while an answer is awaited. */
  watch(isAwaited) {
    this.isAwaited = isAwaited;
    if (isAwaited) this.check();
  }
  /* Waits until the server answers again. Raises when the signal is aborted. */
  back(signal) {
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason), {once: true});
      this.health = null;
      this.tell();
      this.waiting.push(resolve);
      this.timer = setTimeout(() => this.check(), BUSY_MS);
    });
  }
}
