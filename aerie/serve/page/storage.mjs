/* Conversations in the browser's storage, each in a place of its own, together with what other tabs write.

   Two tabs may write the same place at once, and the later one wins. So every tab that hears of a write that lacks
   something of its own writes both together: what was written by any of them is in the end with all of them. */

import {fromJson, hasAll, merge} from "./conversations.mjs";

const PLACE = "aerie.conversation.";
const OLD_PLACE = "aerie.conversations";
const place = conversation => PLACE + conversation.id;

/* Stands in for the storage of a browser that forbids it. */
class Memory {
  getItem(name) { return this[name] ?? null; }
  setItem(name, text) { this[name] = text; }
  removeItem(name) { delete this[name]; }
}

/* The browser's storage by its name; where it is forbidden, one that lasts as long as the page. */
export function browserStorage(name) {
  try { return window[name].length >= 0 ? window[name] : new Memory(); } catch { return new Memory(); }
}

export class ConversationStore {
  /* storage: as localStorage. onFull: called with whether the last write did not fit. */
  constructor(storage, onFull = () => {}) {
    this.storage = storage;
    this.onFull = onFull;
    this.all = new Map();
    this.unsaved = new Set();
    for (const name of Object.keys(storage).filter(each => each.startsWith(PLACE))) this.take(parsed(this.read(name)));
    this.takeOld();
  }
  take(conversation) {
    if (conversation) this.all.set(conversation.id, conversation);
    return conversation;
  }
  /* All conversations were once a list in one place. */
  takeOld() {
    const old = parsedJson(this.read(OLD_PLACE));
    if (!Array.isArray(old)) return;
    const made = old.map(fromJson).filter(Boolean);
    if (made.every(each => this.save(this.all.get(each.id) ?? this.take(each)))) this.storage.removeItem(OLD_PLACE);
  }
  read(name) {
    try { return this.storage.getItem(name); } catch { return null; }
  }
  newestFirst() {
    return [...this.all.values()].sort((a, b) => parseInt(b.id) - parseInt(a.id) || (a.id < b.id ? 1 : -1));
  }
  /* Writes a conversation, with what another tab wrote of it. Returns whether it fits. */
  save(conversation) {
    this.all.set(conversation.id, conversation);
    const stored = parsed(this.read(place(conversation)));
    if (stored) merge(conversation, stored);
    try {
      this.storage.setItem(place(conversation), JSON.stringify(conversation));
      this.unsaved.delete(conversation);
    } catch { this.unsaved.add(conversation); }
    this.onFull(this.unsaved.size > 0);
    return !this.unsaved.has(conversation);
  }
  remove(conversation) {
    this.all.delete(conversation.id);
    this.unsaved.delete(conversation);
    this.storage.removeItem(place(conversation));
    for (const each of [...this.unsaved]) this.save(each);
    this.onFull(this.unsaved.size > 0);
  }
  /* Adds what was imported; conversations that are here already get what they lack. Returns how many are new. */
  add(conversations) {
    let added = 0;
    for (const each of conversations) {
      const mine = this.all.get(each.id);
      if (mine) merge(mine, each);
      else added++;
      this.save(mine ?? each);
    }
    return added;
  }
  /* Takes what another tab wrote. Returns whether it was a conversation. isHeld: one that this tab still needs. */
  onStorage(key, value, isHeld = () => false) {
    if (!key?.startsWith(PLACE)) return false;
    const mine = this.all.get(key.slice(PLACE.length)), come = parsed(value);
    if (!come) {
      if (mine && !isHeld(mine)) this.all.delete(mine.id);
    } else if (!mine) this.take(come);
    else {
      merge(mine, come);
      if (!hasAll(come, mine)) this.save(mine);
    }
    return true;
  }
}

function parsedJson(text) {
  try { return JSON.parse(text); } catch { return null; }
}

function parsed(text) {
  return text ? fromJson(parsedJson(text)) : null;
}
