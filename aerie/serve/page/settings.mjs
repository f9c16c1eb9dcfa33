/* The settings of this browser, the models of the server, and the dialog. */

import {byId} from "./dom.mjs";
import {browserStorage} from "./storage.mjs";

const PLACE = "aerie.settings";
const KEY_PLACE = "aerie.key";
const FIELDS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "thinking"];
const DEFAULTS = {temperature: "0.7"};
const THINKING_ARGUMENT = "enable_thinking";

export class Settings {
  constructor(storage) {
    this.storage = storage;
    this.session = browserStorage("sessionStorage");
    this.values = {...DEFAULTS, ...read(storage)};
    this.models = [];
    this.hasThinking = false;
  }
  get model() { return this.values.model ?? ""; }
  get key() { return this.session.getItem(KEY_PLACE) ?? ""; }
  set key(key) { this.session.setItem(KEY_PLACE, key); }
  get headers() { return this.key ? {Authorization: `Bearer ${this.key}`} : {}; }
  set(name, value) {
    this.values[name] = value;
    try { this.storage.setItem(PLACE, JSON.stringify(this.values)); } catch { /* they hold for this tab */ }
  }
  /* Positions of a model's context; undefined while it is not loaded. */
  context(name) {
    return (this.models.find(each => each.id === name) ?? this.models[0])?.max_model_len;
  }
  /* Reads the list of models. Returns what is wrong, in words. */
  async loadModels(health) {
    const response = await fetch("v1/models", {headers: this.headers}).catch(() => null);
    if (response?.status === 401) return "The server asks for an API key. Give it in the settings.";
    if (!response?.ok) return "";
    this.models = (await response.json()).data;
    if (!this.models.some(each => each.id === this.model)) delete this.values.model;
    const name = this.model || this.models[0]?.id;
    if (health?.models?.[name] === "loaded") await this.loadTemplate(name);
    return "";
  }
  /* Whether the model can be told to think or not: its chat template says so. */
  async loadTemplate(name) {
    const response = await fetch(`props?model=${encodeURIComponent(name)}`, {headers: this.headers}).catch(() => null);
    const template = response?.ok ? (await response.json()).chat_template : "";
    this.hasThinking = Boolean(template?.includes(THINKING_ARGUMENT));
    if (!this.hasThinking) this.values.thinking = "";
  }
}

function read(storage) {
  try { return JSON.parse(storage.getItem(PLACE)) ?? {}; } catch { return {}; }
}

/* conversation(): the one whose system prompt is shown. onDone: called when the dialog is closed. */
export function addSettings(settings, conversation, onDone) {
  byId("settings").onclick = () => {
    for (const name of FIELDS) byId(name).value = settings.values[name] ?? "";
    byId("thinking-label").hidden = !settings.hasThinking;
    byId("system").value = conversation().system;
    byId("key").value = settings.key;
    byId("form").showModal();
  };
  byId("form").onclose = () => {
    for (const name of FIELDS) settings.set(name, byId(name).value);
    settings.key = byId("key").value;
    const shown = conversation();
    if (shown.system !== byId("system").value) Object.assign(shown, {system: byId("system").value, changed: Date.now()});
    onDone();
  };
}
