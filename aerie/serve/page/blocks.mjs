/* Markdown in blocks: headings, lists, tables, quotes, code. A text becomes a tree of plain objects
   ({tag, attributes, children}, as in inline.mjs); a block of code is {tag: "code-block", language, code}. */

import {parseInline} from "./inline.mjs";

const MAX_DEPTH = 12;
const TAB = 4;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-+*]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TASK = /^\[([ xX])\] /;
const BLANK = /^[ \t]*$/;

/* The blocks of a text: [{node, start}], start being the offset of the block's first character. */
export function parseBlocks(text, memory = new Memory()) {
  const lines = text.split("\n");
  const starts = [];
  let offset = 0;
  for (const line of lines) {
    starts.push(offset);
    offset += line.length + 1;
  }
  return new Reader(lines, 0, memory).blocks().map(({node, line}) => ({node, start: starts[line]}));
}

/* What was read last time, by its source: items and rows of a long list or table that grows are the same objects again. */
class Memory {
  constructor(older = new Map()) {
    this.older = older;
    this.known = new Map();
  }
  recall(source, read) {
    const node = this.older.get(source) ?? this.known.get(source) ?? read();
    this.known.set(source, node);
    return node;
  }
}

/* A text that grows at its end. The last two blocks are read again each time; those before them stay: a text that
   follows can change a block only as long as nothing but one more block stands after it. */
export class GrowingText {
  constructor() {
    this.text = "";
    this.settled = 0;
    this.nodes = [];
    this.settledNodes = 0;
    this.memory = new Memory();
  }
  /* Takes the whole text. Returns {nodes, from}: nodes before `from` are as they were. */
  update(text) {
    if (!text.startsWith(this.text)) Object.assign(this, new GrowingText());
    this.text = text;
    const from = this.settledNodes, base = this.settled;
    this.memory = new Memory(this.memory.known);
    const blocks = parseBlocks(text.slice(base), this.memory);
    this.nodes.length = from;
    this.nodes.push(...blocks.map(({node}) => node));
    const open = blocks.at(-2);
    if (open) {
      this.settled = base + open.start;
      this.settledNodes = this.nodes.length - 2;
    }
    return {nodes: this.nodes, from};
  }
}

class Reader {
  constructor(lines, depth, memory) {
    this.lines = lines;
    this.depth = depth;
    this.memory = memory;
    this.at = 0;
  }
  blocks() {
    const made = [];
    while (this.at < this.lines.length) {
      const line = this.at;
      const node = BLANK.test(this.lines[line]) ? (this.at++, null) : this.block(this.lines[line]);
      if (node) made.push({node, line});
    }
    return made;
  }
  /* The block that begins at this line; `at` is then behind it. */
  block(line) {
    const fence = FENCE.exec(line);
    if (fence) return this.fenced(fence);
    const heading = HEADING.exec(line);
    if (heading) {
      this.at++;
      return headingNode(heading[1].length, (heading[2] ?? "").replace(/(?:^|[ \t])#{1,99}[ \t]*$/, ""));
    }
    if (RULE.test(line)) {
      this.at++;
      return {tag: "hr", children: []};
    }
    if (/^(?: {4}|\t)/.test(line)) return this.indented();
    if (this.depth < MAX_DEPTH) {
      if (QUOTE.test(line)) return this.quote();
      const item = ITEM.exec(line);
      if (item) return this.list(item);
    }
    return this.table(line) ?? this.paragraph();
  }
  fenced([, indent, fence, language]) {
    const code = [], closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`);
    for (this.at++; this.at < this.lines.length; this.at++) {
      if (closing.test(this.lines[this.at])) {
        this.at++;
        break;
      }
      code.push(unindented(this.lines[this.at], indent.length));
    }
    return {tag: "code-block", language: language.trim().split(/\s/)[0], code: code.join("\n")};
  }
  indented() {
    const code = [];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at];
      if (!/^(?: {4}|\t)/.test(line) && !BLANK.test(line)) break;
      code.push(unindented(line, TAB));
    }
    while (BLANK.test(code.at(-1))) code.pop();
    return {tag: "code-block", language: "", code: code.join("\n")};
  }
  quote() {
    const inside = [];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at];
      if (QUOTE.test(line)) inside.push(line.replace(QUOTE, ""));
      else if (!BLANK.test(line) && !startsBlock(line) && !BLANK.test(inside.at(-1))) inside.push(line);
      else break;
    }
    return {tag: "blockquote", children: this.nested(inside)};
  }
  nested(lines) {
    return new Reader(lines, this.depth + 1, this.memory).blocks().map(({node}) => node);
  }
  list(first) {
    const kind = first[2].at(-1), isOrdered = first[2].length > 1, items = [];
    let isLoose = false;
    for (let found = first; found && found[2].at(-1) === kind && (found[2].length > 1) === isOrdered;) {
      const lines = this.item(found), endsBlank = lines.length > 1 && BLANK.test(lines.at(-1));
      while (lines.length > 1 && BLANK.test(lines.at(-1))) lines.pop();
      items.push(lines);
      found = this.at < this.lines.length && !RULE.test(this.lines[this.at]) ? ITEM.exec(this.lines[this.at]) : null;
      if (found && found[1].length > 3) found = null;
      isLoose ||= lines.some(line => BLANK.test(line)) && !lines.some(line => FENCE.test(line));
      isLoose ||= endsBlank && found?.[2].at(-1) === kind;
    }
    const node = {tag: isOrdered ? "ol" : "ul", children: items.map(lines => this.knownItem(lines, isLoose))};
    if (isOrdered) node.attributes = {start: String(parseInt(first[2]))};
    return node;
  }
  /* The lines of an item, without its marker and indentation. */
  item([, indent, marker, space, rest]) {
    const width = indent.length + marker.length + (space && space.length <= TAB ? space.length : 1);
    const lines = [space && space.length > TAB ? space.slice(1) + rest : rest ?? ""];
    for (this.at++; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at], deep = indentation(line);
      if (BLANK.test(line)) lines.push("");
      else if (deep >= width) lines.push(unindented(line, width));
      else if (deep >= indent.length + 2 && ITEM.test(line)) lines.push(unindented(line, deep));
      else if (lines.at(-1) !== "" && !startsBlock(line) && !ITEM.test(line)) lines.push(line);
      else break;
    }
    return lines;
  }
  knownItem(lines, isLoose) {
    return this.memory.recall(`${this.depth} ${isLoose}\n${lines.join("\n")}`, () => this.itemNode(lines, isLoose));
  }
  itemNode(lines, isLoose) {
    const task = TASK.exec(lines[0]);
    const blocks = this.nested(task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines);
    const children = isLoose ? blocks : blocks.flatMap(each => (each.tag === "p" ? each.children : [each]));
    if (!task) return {tag: "li", children};
    return {tag: "li", attributes: {task: "task"}, children: [task[1] === " " ? "☐ " : "☑ ", ...children]};
  }
  table(line) {
    const rule = this.lines[this.at + 1];
    if (rule === undefined || !line.includes("|") || !TABLE_RULE.test(rule)) return null;
    const head = cells(line), aligns = cells(rule).map(alignment);
    if (head.length !== aligns.length) return null;
    const rows = [];
    for (this.at += 2; this.at < this.lines.length; this.at++) {
      const each = this.lines[this.at];
      if (BLANK.test(each) || startsBlock(each)) break;
      rows.push(this.memory.recall(`${rule}\n${each}`, () => {
        const texts = cells(each);
        return row("td", head.map((_, i) => texts[i] ?? ""), aligns);
      }));
    }
    const sections = [{tag: "thead", children: [row("th", head, aligns)]}, {tag: "tbody", children: rows}];
    return {tag: "table", children: rows.length ? sections : sections.slice(0, 1)};
  }
  paragraph() {
    const lines = [];
    for (; this.at < this.lines.length; this.at++) {
      const line = this.lines[this.at], underline = lines.length ? UNDERLINE.exec(line) : null;
      if (underline) {
        this.at++;
        return headingNode(underline[1][0] === "=" ? 1 : 2, lines.join("\n"));
      }
      if (BLANK.test(line) || (lines.length && (startsBlock(line) || startsTable(line, this.lines[this.at + 1])))) break;
      lines.push(line.trimStart());
    }
    return {tag: "p", children: parseInline(lines.join("\n").replace(/[ \t]*\\?\n/g, "\n").trimEnd())};
  }
}

/* Below the headings of the page itself, which are h1 and h2. */
function headingNode(level, text) {
  return {tag: `h${Math.min(level + 2, 6)}`, attributes: {level: String(level)}, children: parseInline(text.trim())};
}

/* Whether a line ends a paragraph. An ordered list does so only from 1 on: a year at the start of a line is text. */
function startsBlock(line) {
  const item = ITEM.exec(line);
  const isItem = item && item[1].length < TAB && item[4] && (item[2].length === 1 || parseInt(item[2]) === 1);
  return isItem || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function startsTable(line, next) {
  return next !== undefined && line.includes("|") && next.includes("|") && TABLE_RULE.test(next)
    && cells(line).length === cells(next).length;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map(cell => cell.trim().replace(/\\\|/g, "|"));
}

function alignment(cell) {
  const right = cell.endsWith(":");
  return right ? (cell.startsWith(":") ? "center" : "right") : "";
}

function row(tag, texts, aligns) {
  const made = texts.map((text, i) => ({tag, attributes: aligns[i] ? {align: aligns[i]} : {}, children: parseInline(text)}));
  return {tag: "tr", children: made};
}

function indentation(line) {
  let width = 0;
  for (const char of line) {
    if (char === " ") width++;
    else if (char === "\t") width += TAB - width % TAB;
    else break;
  }
  return width;
}

/* The line without at most so many columns of white space at its start. */
function unindented(line, width) {
  let column = 0, at = 0;
  while (column < width && (line[at] === " " || line[at] === "\t")) {
    column += line[at] === "\t" ? TAB - column % TAB : 1;
    at++;
  }
  return " ".repeat(Math.max(0, column - width)) + line.slice(at);
}
