/* Elements for trees of plain objects (inline.mjs, blocks.mjs), and small helpers. No text is ever read as HTML: an
   element has one of the tags below, one of the attributes below, and text nodes. The policy of the page has Trusted
   Types, so that a browser with them refuses everything else too. */

import {GrowingText} from "./blocks.mjs";
import {safeUrl} from "./inline.mjs";

const TAGS = new Set(["p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "table", "thead", "tbody", "tr",
  "th", "td", "code", "em", "strong", "del", "a"]);
const ATTRIBUTES = new Map([
  ["href", (element, value) => {
    if (safeUrl(value) === null) return;
    element.href = value;
    element.target = "_blank";
    element.rel = "noopener noreferrer nofollow";
  }],
  ["start", (element, value) => element.setAttribute("start", value)],
  ["align", (element, value) => { element.className = value; }],
  ["task", (element, value) => { element.className = value; }],
  ["level", (element, value) => element.setAttribute("aria-level", String(Number(value) + 2))],
]);

export const byId = id => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function button(text, onclick, label = "") {
  const made = make("button", {type: "button", textContent: text, onclick});
  if (label) {
    made.setAttribute("aria-label", label);
    made.title = label;
  }
  return made;
}

/* Puts a text on the clipboard. A page from another machine over plain HTTP has no clipboard; its selection has. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", {value: text, className: "hidden"});
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("this browser allows no copy here");
}

/* Shows `Copied` in the button for a moment, and has it read out. */
export function copyButton(text, label) {
  const made = button("Copy", async () => {
    const done = await copy(text()).then(() => "Copied", () => "Copying failed");
    made.textContent = byId("status").textContent = done;
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, label);
  return made;
}

/* Shows a Markdown text that grows. Only what changed is drawn: a selection, a scrolled block of code and the elements
   that stand stay as they are. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.growing = new GrowingText();
  }
  update(text) {
    const {nodes, from} = this.growing.update(text);
    patch(this.element, nodes, from);
  }
}

/* Makes the children of an element those of the tree, from number `from` on. */
function patch(parent, nodes, from = 0) {
  for (let i = from; i < nodes.length; i++) {
    const old = parent.childNodes[i];
    if (!old) parent.append(created(nodes[i]));
    else if (drawn.get(old) === nodes[i]) continue;
    else if (isKind(old, nodes[i])) fill(old, nodes[i]);
    else old.replaceWith(created(nodes[i]));
  }
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

function kindOf(node) {
  return typeof node === "string" ? "text" : node?.tag;
}

/* Which node of a tree an element or text shows: the very same one need not be drawn again. */
const drawn = new WeakMap();

function isKind(old, node) {
  return kindOf(drawn.get(old)) === kindOf(node);
}

function created(node) {
  const made = shell(node);
  fill(made, node);
  return made;
}

function shell(node) {
  if (typeof node === "string") return document.createTextNode("");
  if (node.tag === "code-block") return codeBlock();
  if (!TAGS.has(node.tag)) throw new Error(`no element is made for ${node.tag}`);
  if (node.tag !== "table") return document.createElement(node.tag);
  const scrolled = make("div", {className: "table", tabIndex: 0}, document.createElement("table"));
  scrolled.setAttribute("role", "region");
  scrolled.setAttribute("aria-label", "Table");
  return scrolled;
}

function codeBlock() {
  const code = make("code"), language = make("span");
  const head = make("div", {className: "code-head"}, language, copyButton(() => code.textContent, "Copy this code"));
  const made = make("div", {className: "code"}, head, make("pre", {tabIndex: 0}, code));
  return made;
}

function fill(element, node) {
  drawn.set(element, node);
  if (typeof node === "string") setText(element, node);
  else if (node.tag === "code-block") {
    const code = element.querySelector("code");
    if (!code.firstChild) code.append("");
    setText(code.firstChild, node.code);
    element.querySelector("span").textContent = node.language.slice(0, 40) || "code";
  } else if (node.tag === "table") patch(element.firstChild, node.children);
  else {
    for (const [name, value] of Object.entries(node.attributes ?? {})) ATTRIBUTES.get(name)?.(element, value);
    patch(element, node.children);
  }
}

/* A text that only grew is appended to, which keeps a selection within it. */
function setText(textNode, text) {
  const old = textNode.data;
  if (old === text) return;
  if (text.startsWith(old)) textNode.appendData(text.slice(old.length));
  else textNode.data = text;
}
