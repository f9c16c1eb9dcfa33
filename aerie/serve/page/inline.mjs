/* Markdown within a line: emphasis, code, links. Text becomes a tree of plain objects, {tag, attributes, children} or
   a string. Nothing of the text is ever a tag: HTML stays text. Every step is linear in the length of the text. */

const MAX_DEPTH = 20;
const MAX_URL = 2000;
const SAFE_PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = new Map([["amp", "&"], ["lt", "<"], ["gt", ">"], ["quot", "\""], ["apos", "'"], ["nbsp", "\u00a0"]]);
const PUNCTUATION = /[\p{P}\p{S}]/u;
/* In this order: an escape, a run of backticks, <an address>, a line break as HTML, an entity, a bare address,
   a run of delimiters, brackets, other text, one more character. */
const TOKEN = new RegExp([
  "\\\\([!-/:-@[-`{-~\\n])", "(`+)", "<((?:https?://|mailto:)[^\\s<>]{0,2000})>", "(<br[ ]?/?>)",
  "&(#\\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});", "(https?://[^\\s<>]{1,2000})", "(\\*+|_+|~+)", "(!?\\[)", "(\\])",
  "(?:[^\\\\`<&*_~!\\[\\]h]|h(?!ttps?://)){1,500}", "[\\s\\S]",
].join("|"), "y");
const LINK_TARGET = new RegExp(
  "\\(\\s{0,9}(?:<([^<>\\n]{0,2000})>|([^\\s()<>]{0,2000}(?:\\([^\\s()<>]{0,500}\\)[^\\s()<>]{0,500}){0,9}))"
  + "(?:\\s{1,9}(?:\"[^\"]{0,500}\"|'[^']{0,500}'|\\([^()]{0,500}\\)))?\\s{0,9}\\)", "y");

/* The address if a reader may follow it: absolute, and neither script nor data. Else null. */
export function safeUrl(text) {
  if (text.length > MAX_URL) return null;
  try {
    const url = new URL(text);
    return SAFE_PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch { return null; }
}

export function parseInline(text) {
  return emphasized(new Scanner(text).items());
}

export function plainText(nodes) {
  return nodes.map(node => (typeof node === "string" ? node : plainText(node.children))).join("");
}

/* Reads the text once, from left to right. Links are closed on the way; delimiters of emphasis stay items. */
class Scanner {
  constructor(text) {
    this.text = text;
    this.made = [];
    this.brackets = [];
    this.backticks = null;
  }
  items() {
    for (let at = 0; at < this.text.length;) {
      TOKEN.lastIndex = at;
      at = this.read(TOKEN.exec(this.text), at);
    }
    return this.made;
  }
  /* Takes one token; returns where the next one begins. */
  read(found, at) {
    const [whole, escaped, ticks, angled, lineBreak, entity, bare, run, open, close] = found;
    const end = at + whole.length;
    if (ticks) return this.code(ticks.length, at, end);
    if (bare) return this.bare(bare, at);
    if (close) return this.close(end);
    if (escaped) this.made.push(escaped);
    else if (angled) this.made.push(...link([angled], angled));
    else if (lineBreak) this.made.push("\n");
    else if (entity) this.made.push(decoded(entity) ?? whole);
    else if (run) this.made.push(delimiter(this.text, at, end));
    else if (open) this.open(open);
    else this.made.push(whole);
    return end;
  }
  /* A code span goes to the next run of as many backticks. Where there is none, the run is text. */
  code(length, at, end) {
    this.backticks ??= runsByLength(this.text);
    const starts = this.backticks.get(length) ?? [];  // none of a run whose first backtick is escaped
    while (starts.length && starts[starts.length - 1] < end) starts.pop();
    if (!starts.length) {
      this.made.push(this.text.slice(at, end));
      return end;
    }
    const closing = starts.pop();
    const inside = this.text.slice(end, closing).replace(/\n/g, " ");
    const padded = /^ .*[^ ].* $/.test(inside);
    this.made.push({tag: "code", children: [padded ? inside.slice(1, -1) : inside]});
    return closing + length;
  }
  bare(found, at) {
    let address = found.replace(/[.,:;!?'"*_~\]`]{1,20}$/, "");
    if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
    this.made.push(...link([address], address));
    return at + address.length;
  }
  open(text) {
    this.brackets.push({index: this.made.length, isImage: text.length > 1, isActive: true});
    this.made.push(text);
  }
  close(end) {
    const opening = this.brackets.pop();
    LINK_TARGET.lastIndex = end;
    const target = opening?.isActive ? LINK_TARGET.exec(this.text) : null;
    if (!target) {
      this.made.push("]");
      return end;
    }
    const inside = emphasized(this.made.splice(opening.index).slice(1));
    const address = (target[1] ?? target[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1");
    if (opening.isImage) this.made.push(...link([`image: ${plainText(inside) || address}`], address));
    else {
      this.made.push(...link(inside, address));
      for (const each of this.brackets) each.isActive &&= each.isImage;
    }
    return LINK_TARGET.lastIndex;
  }
}

/* A link, or for an address that nobody should follow, its text with the address beside it. */
function link(children, address) {
  const href = safeUrl(address);
  if (href !== null) return [{tag: "a", attributes: {href}, children}];
  return plainText(children) === address ? [address] : [...children, ` (${address})`];
}

function decoded(entity) {
  if (!entity.startsWith("#")) return ENTITIES.get(entity) ?? null;
  const isHex = /^#x/i.test(entity);
  const code = parseInt(entity.slice(isHex ? 2 : 1), isHex ? 16 : 10);
  return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
}

/* Where runs of backticks begin, by their lengths, the last one first. */
function runsByLength(text) {
  const made = new Map();
  for (const {0: run, index} of text.matchAll(/`+/g)) {
    if (!made.has(run.length)) made.set(run.length, []);
    made.get(run.length).push(index);
  }
  for (const starts of made.values()) starts.reverse();
  return made;
}

/* A run of * _ or ~, and whether it may open or close emphasis (CommonMark, "left-flanking"). */
function delimiter(text, at, end) {
  const char = text[at], length = end - at;
  if (length > 3 || (char === "~" && length !== 2)) return text.slice(at, end);
  const before = at ? text[at - 1] : " ", after = end < text.length ? text[end] : " ";
  const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  const isWord = char === "_" && left && right;
  return {
    char, length, whole: length,
    canOpen: left && (!isWord || PUNCTUATION.test(before)),
    canClose: right && (!isWord || PUNCTUATION.test(after)),
  };
}

/* Items with their delimiters paired, or written out where they have no partner. */
function emphasized(items) {
  const made = [], openers = [], without = new Map();
  for (const item of items) {
    if (typeof item === "string" || item.tag) made.push(item);
    else {
      if (item.canClose) closeEmphasis(item, made, openers, without);
      if (item.length && item.canOpen) openers.push({item, index: made.length});
      if (item.length) made.push(item);
    }
  }
  return joined(made.map(each => (each.char ? each.char.repeat(each.length) : each)).filter(each => each !== ""));
}

/* without: for each kind of closer, how many openers it has no partner among. */
function closeEmphasis(closer, made, openers, without) {
  const kind = `${closer.char}${closer.canOpen}${closer.whole % 3}`;
  while (closer.length) {
    let found = openers.length - 1;
    const least = without.get(kind) ?? 0;
    while (found >= least && !pairs(openers[found].item, closer)) found--;
    if (found < least) {
      without.set(kind, openers.length);
      return;
    }
    for (const [each, count] of without) without.set(each, Math.min(count, found));
    const {item, index} = openers[found];
    const used = closer.char === "~" ? 2 : Math.min(2, item.length, closer.length);
    const children = joined(made.splice(index + 1).map(each => (each.char ? each.char.repeat(each.length) : each)));
    const depth = 1 + Math.max(0, ...children.map(each => each.depth ?? 0).slice(0, 1000));
    const tag = closer.char === "~" ? "del" : used === 2 ? "strong" : "em";
    item.length -= used;
    closer.length -= used;
    openers.length = item.length ? found + 1 : found;
    if (depth > MAX_DEPTH) made.push(closer.char.repeat(used), ...children, closer.char.repeat(used));
    else made.push({tag, children, depth});
  }
}

function pairs(opener, closer) {
  if (opener.char !== closer.char) return false;
  if (opener.char === "~") return true;
  const isEither = closer.canOpen || opener.canClose;
  return !isEither || (opener.whole + closer.whole) % 3 !== 0 || opener.whole % 3 === 0;
}

/* Texts that follow each other as one. */
function joined(items) {
  const made = [];
  for (const item of items) {
    const isText = typeof item === "string";
    if (isText && typeof made[made.length - 1] === "string") made[made.length - 1] += item;
    else made.push(item);
  }
  return made;
}
