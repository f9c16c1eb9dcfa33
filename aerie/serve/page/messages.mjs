/* The messages of a conversation on the page. A message's element stays as long as the message is shown, so that what a
   reader opened, selected or scrolled in it stays too. */

import {CAN_CONTINUE, ENDS} from "./answers.mjs";
import {path, versions} from "./conversations.mjs";
import {button, copyButton, make, MarkdownView} from "./dom.mjs";

const NEAR_PX = 80;
const HEARD = new Set(["stop"]);

/* log: the element. actions: {edit(message, text), regenerate(message), proceed(message), show(message, label)}. */
export class MessageList {
  constructor(log, actions) {
    this.log = log;
    this.actions = actions;
    this.views = new Map();
  }
  /* Shows the conversation. run: the answer that is being written in it, if there is one. */
  draw(conversation, run) {
    const shown = path(conversation), ids = new Set(shown.map(message => message.id));
    for (const id of this.views.keys()) if (!ids.has(id)) this.views.delete(id);
    const views = shown.map(message => this.view(message));
    views.forEach((view, i) => view.update(shown[i], versions(conversation, shown[i]), run));
    this.arrange(views.map(view => view.element));
  }
  view(message) {
    if (!this.views.has(message.id))
      this.views.set(message.id, message.role === "user" ? new QuestionView(this.actions) : new AnswerView(this.actions));
    return this.views.get(message.id);
  }
  /* Only elements that are not in their place are put there. */
  arrange(elements) {
    elements.forEach((element, i) => {
      if (this.log.children[i] !== element) this.log.insertBefore(element, this.log.children[i] ?? null);
    });
    while (this.log.children.length > elements.length) this.log.lastElementChild.remove();
  }
  /* Draws the text of the answer that is being written, and nothing else. */
  grow(message, run) {
    const wasNear = this.isAtEnd;
    this.views.get(message.id)?.grow(message, run);
    if (wasNear) this.toEnd();
  }
  /* Puts the focus on an arrow of a message, or on the other one where it is the last. */
  focusArrow(message, label) {
    const element = this.views.get(message.id)?.element;
    const arrow = element?.querySelector(`.versions [aria-label="${label}"]:enabled`) ?? element?.querySelector(".versions :enabled");
    arrow?.focus();
  }
  get isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_PX;
  }
  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

/* The arrows between versions; nothing where there is only one. */
function versionArrows(message, all, show, isBusy) {
  if (all.length < 2) return [];
  const at = all.indexOf(message);
  const arrow = (text, label, other) => button(text, () => show(other, label), label);
  const back = arrow("‹", "Earlier version", all[at - 1]), on = arrow("›", "Later version", all[at + 1]);
  back.disabled = isBusy || at === 0;
  on.disabled = isBusy || at === all.length - 1;
  const count = make("span", {textContent: `${at + 1}/${all.length}`});
  const group = make("span", {className: "versions"}, back, count, on);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `Version ${at + 1} of ${all.length}`);
  return [group];
}

class QuestionView {
  constructor(actions) {
    this.actions = actions;
    this.text = make("div", {className: "text"});
    this.tools = make("div", {className: "tools"});
    this.element = make("article", {className: "user"}, make("h2", {className: "hidden", textContent: "You"}), this.text, this.tools);
  }
  update(message, all, run) {
    if (this.form) return;
    this.text.textContent = message.content;
    const change = button("Edit", () => this.edit(message));
    change.disabled = Boolean(run);
    this.tools.replaceChildren(...versionArrows(message, all, this.actions.show, Boolean(run)),
      copyButton(() => message.content, "Copy this message"), change);
  }
  edit(message) {
    const area = make("textarea", {value: message.content, rows: Math.min(12, message.content.split("\n").length + 1)});
    area.setAttribute("aria-label", "Edit your message");
    const send = make("button", {className: "main", textContent: "Send"});
    this.form = make("form", {className: "edit"}, area, make("div", {}, button("Cancel", () => this.close()), send));
    this.form.onsubmit = event => {
      event.preventDefault();
      if (!area.value.trim()) return;
      this.close();
      this.actions.edit(message, area.value.trim());
    };
    area.onkeydown = event => {
      if (event.key === "Escape") this.close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    };
    this.text.hidden = this.tools.hidden = true;
    this.element.classList.add("editing");
    this.element.append(this.form);
    area.focus();
  }
  close() {
    this.form.remove();
    this.form = null;
    this.text.hidden = this.tools.hidden = false;
    this.element.classList.remove("editing");
    this.tools.lastElementChild?.focus();
  }
}

class AnswerView {
  constructor(actions) {
    this.actions = actions;
    this.summary = make("summary");
    this.thought = make("div");
    this.thinking = make("details", {className: "thinking", hidden: true}, this.summary, this.thought);
    this.text = make("div", {className: "text markdown"});
    this.pending = make("div", {className: "pending", hidden: true});
    this.end = make("p", {className: "end", hidden: true});
    this.tools = make("div", {className: "tools"});
    this.title = make("h2", {textContent: "Model"});
    this.markdown = new MarkdownView(this.text);
    this.element = make("article", {className: "assistant"}, this.title, this.thinking, this.text, this.pending, this.end, this.tools);
  }
  update(message, all, run) {
    const isRunning = run?.message === message;
    this.title.textContent = message.model || "Model";
    this.grow(message, isRunning ? run : null);
    this.element.setAttribute("aria-busy", String(isRunning));
    this.tools.hidden = isRunning;
    const note = isRunning || HEARD.has(message.end) ? "" : message.note || ENDS[message.end] || "";
    this.end.textContent = note;
    this.end.hidden = !note;
    this.end.classList.toggle("wrong", message.end === "error" || message.end === "lost");
    this.tools.replaceChildren(...versionArrows(message, all, this.actions.show, Boolean(run)), ...this.buttons(message, run),
      make("span", {className: "figures", textContent: message.figures ?? ""}));
  }
  buttons(message, run) {
    const again = button(message.content ? "Regenerate" : "Try again", () => this.actions.regenerate(message));
    const made = message.content ? [copyButton(() => message.content, "Copy this answer"), again] : [again];
    if (message.content && CAN_CONTINUE.has(message.end ?? "")) made.push(button("Continue", () => this.actions.proceed(message)));
    for (const each of made) if (each.textContent !== "Copy") each.disabled = Boolean(run);
    return made;
  }
  /* The text so far. run: the answer that is being written; null once it is over. */
  grow(message, run) {
    this.markdown.update(message.content);
    this.showThinking(message, run);
    this.pending.hidden = !run || Boolean(message.content);
    if (run) this.pending.textContent = run.notice;
  }
  showThinking(message, run) {
    const reasoning = message.reasoning ?? "";
    this.thinking.hidden = !reasoning;
    if (!reasoning) return;
    if (this.thought.textContent !== reasoning) this.thought.textContent = reasoning;
    const seconds = message.thought ?? 0, time = seconds < 1 ? "less than a second" : `${Math.round(seconds)} s`;
    this.summary.textContent = run && !message.content ? `Thinking, ${Math.round(seconds)} s` : `Thought for ${time}`;
  }
}
