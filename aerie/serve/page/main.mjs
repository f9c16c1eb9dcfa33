/* The chat page: what its controls do. */

import {append, choose, newConversation, path} from "./conversations.mjs";
import {button, byId, make} from "./dom.mjs";
import {addFiles} from "./files.mjs";
import {MessageList} from "./messages.mjs";
import {Run} from "./runs.mjs";
import {Server} from "./server.mjs";
import {addSettings, Settings} from "./settings.mjs";
import {browserStorage, ConversationStore} from "./storage.mjs";

const UNDO_MS = 10_000;
const storage = browserStorage("localStorage");
const settings = new Settings(storage);
const store = new ConversationStore(storage, isFull);
const server = new Server(showServer);
const runs = new Map();  // by conversation
const list = new MessageList(byId("log"), {edit, regenerate, proceed, show});
let now = store.newestFirst()[0] ?? newConversation();
let noticeTimer = 0;

const isTouch = () => matchMedia("(pointer: coarse)").matches;
const say = text => { byId("status").textContent = text; };

/* A line above the message box, with what can be done about it. */
function notify(text, {isWrong = false, action = null, ms = 0} = {}) {
  clearTimeout(noticeTimer);
  const close = button("Close", () => { byId("notice").hidden = true; });
  byId("notice").replaceChildren(make("span", {textContent: text}), ...(action ? [action] : []), close);
  byId("notice").classList.toggle("wrong", isWrong);
  byId("notice").hidden = false;
  if (ms) noticeTimer = setTimeout(() => { byId("notice").hidden = true; }, ms);
}

function isFull(full) {
  if (full) notify("This browser's storage is full. What is new here is lost when this tab is closed: export conversations to a file, "
    + "or delete some.", {isWrong: true});
}

function draw() {
  drawConversations();
  list.draw(now, runs.get(now));
  const isRunning = runs.has(now);
  byId("empty").hidden = now.messages.length > 0;
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("log").setAttribute("aria-busy", String(isRunning));
  document.title = now.messages.length ? `${now.title} · Aerie` : "Aerie";
}

function drawConversations() {
  const shown = store.all.has(now.id) ? store.newestFirst() : [now, ...store.newestFirst()];
  byId("conversations").replaceChildren(...shown.map(each => {
    const open = button(each.title, () => select(each));
    open.className = "open";
    open.setAttribute("aria-current", String(each === now));
    const gone = button("×", () => remove(each), `Delete ${each.title}`);
    gone.className = "gone";
    return make("li", {}, open, gone);
  }));
}

function select(conversation) {
  now = conversation;
  openList(false);
  draw();
  list.toEnd();
  focusText();
}

/* A phone would show its keyboard, which nobody asked for. */
function focusText() {
  if (!isTouch()) byId("text").focus();
}

function remove(conversation) {
  runs.get(conversation)?.stop();
  store.remove(conversation);
  if (now === conversation) now = store.newestFirst()[0] ?? newConversation();
  draw();
  const undo = button("Undo", () => {
    store.save(conversation);
    byId("notice").hidden = true;
    select(conversation);
  });
  if (conversation.messages.length) notify(`Deleted: ${conversation.title}`, {action: undo, ms: UNDO_MS});
  (conversation.messages.length ? undo : byId("new")).focus();
}

/* Has the model answer after the message `parent`; `begun` is the text that it goes on from. */
async function answer(conversation, parent, begun = {}) {
  if (runs.has(conversation)) return;
  const model = settings.model || server.model;
  const message = append(conversation, parent, {role: "assistant", end: "", model, ...begun});
  const run = new Run(conversation, message, settings.values, {
    headers: () => settings.headers, context: () => settings.context(model), server,
    save: () => (store.all.has(conversation.id) || message.end === "") && store.save(conversation),
    grow: () => conversation === now && list.grow(message, run),
  });
  runs.set(conversation, run);
  server.watch(true);
  draw();
  list.toEnd();
  focusText();
  say("The model answers.");
  await run.finish();
  runs.delete(conversation);
  server.watch(runs.size > 0);
  const wasAtEnd = list.isAtEnd;
  draw();
  if (wasAtEnd && conversation === now) list.toEnd();
  say(message.note ? `${message.content} ${message.note}` : message.content);
  if (message.end === "error" || message.end === "lost") server.check();
}

function edit(message, text) {
  const same = text === message.content;
  answer(now, same ? message.id : append(now, message.parent, {role: "user", content: text}).id);
}

function regenerate(message) {
  answer(now, message.parent);
}

/* Another version, which begins with what is there. */
function proceed({parent, content, reasoning, thought}) {
  answer(now, parent, {content, reasoning, thought});
}

/* label: of the arrow that was pressed, which keeps the focus. */
function show(message, label) {
  choose(now, message);
  store.save(now);
  draw();
  list.focusArrow(message, label);
}

/* What the server is doing, and which models it has. */
function showServer({text, done, total, isWrong}) {
  byId("server").hidden = !text;
  byId("server").classList.toggle("wrong", isWrong);
  if (byId("server-text").textContent !== text) byId("server-text").textContent = text;
  byId("server-progress").hidden = !total;
  if (total) Object.assign(byId("server-progress"), {max: total, value: done});
  if (server.health) showModels();
}

async function showModels() {
  const problem = await settings.loadModels(server.health);
  if (problem) notify(problem, {isWrong: true, action: button("Settings", () => byId("settings").click())});
  const names = settings.models.map(each => each.id);
  const options = settings.models.map(({id, status}) =>
    make("option", {value: id, textContent: status.value === "loaded" ? id : `${id} (${status.value})`}));
  byId("choice").replaceChildren(...options);
  server.model = settings.model || names[0] || server.health?.model || "";
  byId("choice").value = byId("model").textContent = server.model;
  byId("models").hidden = names.length < 2;
  byId("model").hidden = names.length > 1;
  byId("npu").href = names.length > 1 ? `npu?model=${encodeURIComponent(server.model)}` : "npu";
}

function openList(isOpen) {
  document.body.classList.toggle("listed", isOpen);
  byId("list").setAttribute("aria-expanded", String(isOpen));
}

function send(event) {
  event.preventDefault();
  const content = byId("text").value.trim();
  if (!content || runs.has(now)) return;
  const last = path(now).at(-1);
  const question = append(now, last?.id ?? null, {role: "user", content});
  byId("text").value = "";
  answer(now, question.id);
}

function onKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch()) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { storage.setItem("aerie.theme", JSON.stringify(root.dataset.theme)); } catch { /* it holds for this tab */ }
}

byId("ask").onsubmit = send;
byId("text").onkeydown = onKey;
byId("stop").onclick = () => runs.get(now)?.stop();
byId("theme").onclick = switchTheme;
byId("list").onclick = () => openList(!document.body.classList.contains("listed"));
byId("new").onclick = () => select(now.messages.length ? newConversation() : now);
byId("latest").onclick = () => list.toEnd();
byId("log").onscroll = () => { byId("latest").hidden = list.isAtEnd; };
byId("choice").onchange = () => {
  settings.set("model", byId("choice").value);
  showModels();
  server.check();
  say(`Answers are of ${settings.model}.`);
};
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !event.defaultPrevented && !byId("form").open && !event.target.closest?.(".edit")) runs.get(now)?.stop();
});
addEventListener("pagehide", () => { for (const run of runs.values()) run.leave(); });
addEventListener("storage", ({key, newValue}) => {
  if (!store.onStorage(key, newValue, each => runs.has(each))) return;
  if (!store.all.has(now.id) && newValue === null && key.endsWith(now.id)) now = store.newestFirst()[0] ?? newConversation();
  draw();
});
addSettings(settings, () => now, () => {
  if (now.messages.length) store.save(now);
  byId("notice").hidden = true;
  showModels();
});
addFiles(store, () => now, {notify, onImport: imported => { now = imported; draw(); }});
draw();
list.toEnd();
server.check();
focusText();
