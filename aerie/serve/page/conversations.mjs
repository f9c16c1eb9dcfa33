/* Conversations as trees: a message names the one that it follows, so that an edit or another answer is a version beside
   the old one, and two tabs can always be put together by the union of their messages. Nothing here touches a page.

   A conversation is {id, title, system, changed, leaf, messages}; `leaf` is the last message shown. A message is
   {id, parent, role, content, made} and, for answers, reasoning, thought (seconds), model, figures, end and note. */

const MAX_ID = 64;
const ROLES = new Set(["user", "assistant"]);
export const NEW_TITLE = "New conversation";
export const FORMAT = "aerie-conversations";

export function newId() {
  return `${Date.now()}-${Math.random().toString(36).slice(2, 12)}`;
}

export function newConversation() {
  return {id: newId(), title: NEW_TITLE, system: "", changed: Date.now(), leaf: null, messages: []};
}

export function find(conversation, id) {
  return conversation.messages.find(message => message.id === id);
}

/* The messages from the first to the leaf (or to `last`). */
export function path(conversation, last = conversation.leaf) {
  const byId = new Map(conversation.messages.map(message => [message.id, message]));
  const made = [];
  for (let at = byId.get(last); at; at = byId.get(at.parent)) made.unshift(at);
  return made;
}

/* The versions of a message: those that follow the same one, itself included, the oldest first. An answer of which nothing
   came is none, unless it is shown. */
export function versions(conversation, message) {
  return children(conversation, message.parent).filter(each => each === message || length(each) > 0);
}

function children(conversation, parent) {
  const made = conversation.messages.filter(each => each.parent === parent);
  return made.sort((a, b) => a.made - b.made || (a.id < b.id ? -1 : 1));
}

/* Shows another version, with what was written last below it. */
export function choose(conversation, message) {
  for (let at = message; at; at = children(conversation, at.id).at(-1)) conversation.leaf = at.id;
}

/* Appends a message after `parent` and shows it. */
export function append(conversation, parent, fields) {
  const message = {id: newId(), parent, made: Date.now(), content: "", ...fields};
  conversation.messages.push(message);
  conversation.leaf = message.id;
  if (conversation.title === NEW_TITLE && message.role === "user") conversation.title = titleOf(message.content);
  return message;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

const length = message => message.content.length + (message.reasoning ?? "").length;

/* Whether `other` says all that `message` says. An answer only grows, and then gets an end. */
function covers(other, message) {
  if (!other || length(other) < length(message)) return false;
  return length(other) > length(message) || Boolean(other.end) || !message.end;
}

/* Whether a conversation has everything that the other has. */
export function hasAll(conversation, other) {
  return other.messages.every(message => covers(find(conversation, message.id), message));
}

/* Puts `other` into a conversation. What is shown stays, or goes on where the other went on from it. */
export function merge(conversation, other) {
  for (const message of other.messages) {
    const mine = find(conversation, message.id);
    if (!mine) conversation.messages.push({...message});
    else if (!covers(mine, message)) Object.assign(mine, message);
  }
  if (other.changed > conversation.changed) {
    for (const name of ["title", "system", "changed"]) conversation[name] = other[name];
  }
  const follows = path(conversation, other.leaf).some(message => message.id === conversation.leaf);
  if (follows || conversation.leaf === null) conversation.leaf = other.leaf;
}

/* A conversation made of what a file or the browser's storage has; null if it is none. Older forms are read too. */
export function fromJson(data) {
  if (typeof data !== "object" || data === null || !Array.isArray(data.messages)) return null;
  const text = (value, other) => (typeof value === "string" ? value : other);
  const number = value => (Number.isFinite(value) ? value : 0);
  const made = newConversation();
  made.id = isId(data.id) ? data.id : made.id;
  made.title = text(data.title, "").slice(0, 200) || NEW_TITLE;
  made.system = text(data.system, "");
  made.changed = number(data.changed);
  if (data.messages.some(each => typeof each?.content === "string" && each.id === undefined)) fromLists(made, [...(data.versions ?? []), data.messages]);
  else {
    made.messages = rooted(unique(data.messages.map(fromJsonMessage).filter(Boolean)));
    const isHere = made.messages.some(message => message.id === data.leaf);
    made.leaf = isHere ? data.leaf : made.messages.at(-1)?.id ?? null;
  }
  return made;
}

const isId = id => typeof id === "string" && /^[\w.:-]+$/.test(id) && id.length <= MAX_ID;

function fromJsonMessage(data) {
  if (!isId(data?.id) || !ROLES.has(data.role) || typeof data.content !== "string") return null;
  const parent = isId(data.parent) ? data.parent : null;
  const made = {id: data.id, parent, role: data.role, content: data.content, made: Number(data.made) || 0};
  for (const name of ["reasoning", "model", "figures", "end", "note"])
    if (typeof data[name] === "string") made[name] = data[name];
  if (Number.isFinite(data.thought)) made.thought = data.thought;
  return made;
}

function unique(messages) {
  return [...new Map(messages.map(message => [message.id, message])).values()];
}

/* Messages such that each can be reached from a first one; one whose parent is missing, or that follows itself, becomes a
   first one. */
function rooted(messages) {
  const byParent = grouped(messages);
  const seen = new Set(), ids = new Set(messages.map(each => each.id));
  const visit = first => {
    for (const waiting = [first]; waiting.length;) {
      const message = waiting.pop();
      if (seen.has(message)) continue;
      seen.add(message);
      waiting.push(...(byParent.get(message.id) ?? []));
    }
  };
  for (const message of messages) if (!ids.has(message.parent)) visit(Object.assign(message, {parent: null}));
  for (const message of messages) if (!seen.has(message)) visit(Object.assign(message, {parent: null}));
  return messages;
}

function grouped(messages) {
  const made = new Map();
  for (const each of messages) {
    if (!made.has(each.parent)) made.set(each.parent, []);
    made.get(each.parent).push(each);
  }
  return made;
}

/* The older form: a list of messages, and lists that were written over. Lists share what they begin with. Every tab gives
   the messages the same ids. */
function fromLists(conversation, lists) {
  for (const list of lists.filter(Array.isArray)) {
    let parent = null;
    for (const {role, content, wrong, figures} of list.filter(each => each && typeof each.content === "string")) {
      if (!ROLES.has(role)) continue;
      const same = children(conversation, parent).find(each => each.role === role && each.content === content);
      const end = role === "assistant" ? {end: wrong ? "error" : "stop", note: wrong, figures} : {};
      const made = conversation.messages.length;
      const message = same ?? append(conversation, parent, {id: `old-${made}`, made, role, content, ...end});
      conversation.leaf = parent = message.id;
    }
  }
}

export function toFile(conversations) {
  return JSON.stringify({format: FORMAT, version: 1, conversations}, null, 1);
}

/* The conversations of an exported file. Raises an Error that says what is wrong. */
export function fromFile(text) {
  let data = null;
  try { data = JSON.parse(text); } catch { throw new Error("The file is no JSON. Import takes what Export as JSON wrote."); }
  const list = Array.isArray(data?.conversations) ? data.conversations : [data];
  const made = list.map(fromJson);
  if (!made.length || made.includes(null))
    throw new Error("The file has no conversations. Import takes what Export as JSON wrote.");
  return made;
}

/* The conversation that is shown, as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.system) parts.push(`**System prompt**\n\n${conversation.system}`);
  for (const message of path(conversation)) {
    const thinking = message.reasoning ? `> ${message.reasoning.trim().replace(/\n/g, "\n> ")}\n\n` : "";
    const note = message.note ? `\n\n*${message.note}*` : "";
    parts.push(`## ${message.role === "user" ? "You" : "Model"}\n\n${thinking}${message.content.trim()}${note}`);
  }
  return `${parts.join("\n\n")}\n`;
}

/* A name for a file, of the title. */
export function fileName(title, suffix) {
  const words = title.normalize("NFKD").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  return `${words.slice(0, 40) || "conversation"}.${suffix}`;
}
