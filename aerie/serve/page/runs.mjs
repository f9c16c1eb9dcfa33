/* An answer that is being written: it asks, waits where the server cannot answer yet, and keeps what came. */

import {Answer, AnswerError, ENDS, requestBody, stream} from "./answers.mjs";
import {path} from "./conversations.mjs";

const SAVE_MS = 2000;
const RETRY_S = 2;
/* A drawing may take a quarter of the time: a long answer on a slow machine is drawn less often. */
const DRAWING_SHARE = 4;

export class Run {
  /* message: the answer, empty or with the text that it goes on from. hooks: {headers(), context(), server, save(),
     grow()}. */
  constructor(conversation, message, settings, hooks) {
    this.conversation = conversation;
    this.message = message;
    this.begun = message.content;
    this.hooks = hooks;
    this.notice = "Waiting for the model.";
    this.controller = new AbortController();
    this.savedMs = performance.now();
    this.frame = this.drawnMs = this.drawingMs = 0;
    const before = path(conversation, message.parent), sent = this.begun ? [...before, message] : before;
    this.body = requestBody(sent, conversation.system, settings, Boolean(this.begun));
  }
  stop() {
    this.controller.abort();
  }
  /* The page goes away: what has come is kept. */
  leave() {
    Object.assign(this.message, {end: "closed", note: ENDS.closed});
    this.save();
    this.controller.abort("closed");
  }
  /* Runs to the end, and writes into the message how it ended. */
  async finish() {
    this.save();
    this.ticking = setInterval(() => this.drawSoon(), 1000);
    try {
      await this.attempts();
      this.message.end = this.answer.end(this.hooks.context());
    } catch (error) {
      this.fail(error);
    } finally {
      clearInterval(this.ticking);
      this.answer.isWhole = true;
      this.take();
      cancelAnimationFrame(this.frame);
      const figures = this.answer.figures(), note = ENDS[this.message.end];
      if (figures) this.message.figures = figures;
      if (note) this.message.note = note;
      this.save();
    }
  }
  fail(error) {
    if (this.controller.signal.aborted) this.message.end = this.controller.signal.reason === "closed" ? "closed" : "stopped";
    else if (error instanceof AnswerError && error.code === "lost") this.message.end = "lost";
    else Object.assign(this.message, {end: "error", note: error.message});
  }
  /* Asks until the server takes the question. What has begun to come is never asked for again. */
  async attempts() {
    const signal = this.controller.signal;
    for (;;) {
      this.answer = new Answer(this.begun);
      try {
        return await stream(this.body, {headers: this.hooks.headers(), signal, answer: this.answer, onPiece: () => this.piece()});
      } catch (error) {
        const isTemporary = error instanceof AnswerError && (error.isLost || error.isPassing);
        if (signal.aborted || this.answer.hasText || !isTemporary) throw error;
        this.tell(waitingText(error));
        await (error.isLost ? this.hooks.server.back(signal) : pause(error.retryAfter || RETRY_S, signal));
        this.tell("Waiting for the model.");
      }
    }
  }
  tell(notice) {
    this.notice = notice;
    this.drawSoon();
  }
  piece() {
    const {processed, total} = this.answer.progress ?? {};
    if (total && !this.answer.hasText)
      this.notice = processed < total ? `Reading the prompt, ${processed} of ${total} tokens.` : "The first token is computed.";
    this.drawSoon();
    if (performance.now() - this.savedMs > SAVE_MS) this.save();
  }
  /* Puts what has come into the message. */
  take() {
    const {reasoning, content} = this.answer.parts;
    if (reasoning) this.message.reasoning = reasoning;
    this.message.content = content;
    const seconds = this.answer.thoughtSeconds(performance.now());
    if (seconds) this.message.thought = seconds;
  }
  save() {
    if (this.answer) this.take();
    this.savedMs = performance.now();
    this.hooks.save();
  }
  /* Draws in the next frame that has time for it. */
  drawSoon() {
    this.frame ||= requestAnimationFrame(begun => {
      this.frame = 0;
      if (begun - this.drawnMs < this.drawingMs * DRAWING_SHARE) return this.drawSoon();
      if (this.answer) this.take();
      this.hooks.grow();
      this.drawnMs = performance.now();
      this.drawingMs = this.drawnMs - begun;
    });
  }
}

function waitingText(error) {
  if (error.isLost) return "The server does not answer. The question is sent again when it is back.";
  if (error.code === "loading") return "The model is being loaded. The question waits for it.";
  return `The question is sent again in ${error.retryAfter || RETRY_S} s. The server says: ${error.message}`;
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, {once: true});
  });
}
