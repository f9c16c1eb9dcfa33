/* One answer from the server: the request, the stream of events, and how it ended. Nothing here touches the page. */

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const SILENCE_MS = 60_000;
/* Errors after which the same request is sent again by itself, as long as nothing of the answer has come. */
const PASSING = new Set(["loading", "not_loaded", "queue_full", "no_slot", "no_room", "unloaded", "replica_lost"]);
const STOPPING = new Set(["stopping", "stopped"]);

/* What is written under an answer that is not whole. */
export const ENDS = {
  "": "This answer is not complete: it is being written in another tab, or its tab was closed.",
  length: "Cut: the answer has as many tokens as the settings allow.",
  context: "Cut: the context of the model is full. Begin a new conversation, or edit an earlier message.",
  stopped: "You stopped this answer.",
  closed: "Cut: the page was closed before the answer was complete.",
  lost: "Cut: the connection to the server was lost.",
};
/* Ends after which the model can go on where it was. */
export const CAN_CONTINUE = new Set(["", "length", "stopped", "closed", "lost"]);

/* A failure that the server told, or `lost` if there was no server. */
export class AnswerError extends Error {
  constructor(message, code = "", retryAfter = 0) {
    super(message);
    this.code = code;
    this.retryAfter = retryAfter;
  }
  get isLost() { return this.code === "lost" || STOPPING.has(this.code); }
  get isPassing() { return PASSING.has(this.code); }
}

/* The body of a request: settings that are empty are left out. messages: from the first to the last one sent.
   continues: the answer goes on with the last message. */
export function requestBody(messages, system, settings, continues = false) {
  const first = system.trim() ? [{role: "system", content: system}] : [];
  const sent = messages.filter(each => each.content).map(({role, content}) => ({role, content}));
  const body = {messages: [...first, ...sent], stream: true, stream_options: {include_usage: true}, return_progress: true};
  for (const name of SAMPLING)
    if (settings[name] !== "" && settings[name] !== undefined) body[name] = Number(settings[name]);
  if (settings.model) body.model = settings.model;
  if (settings.thinking) body.chat_template_kwargs = {enable_thinking: settings.thinking === "on"};
  if (continues) body.continue_final_message = true;
  return body;
}

/* Whole events of a stream, each the object that it carries; `rest` is the beginning of the next one. */
export function events(text) {
  const blocks = text.split(/\r?\n\r?\n/), rest = blocks.pop(), made = [];
  for (const block of blocks)
    for (const line of block.split(/\r?\n/)) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data) made.push(data === "[DONE]" ? {done: true} : JSON.parse(data));
    }
  return {made, rest};
}

/* {reasoning, content} of a text in which a model may have written its thinking between <think> and </think>, or,
   where the prompt has the first of them, before </think> on a line of its own. isWhole: nothing follows any more. */
export function splitThinking(text, isWhole = false) {
  const opened = /^\s*<think>\n?/.exec(text);
  if (opened) {
    const end = text.indexOf("</think>", opened[0].length);
    if (end < 0) return {reasoning: withoutPart(text.slice(opened[0].length), isWhole ? "" : "</think>"), content: ""};
    return {reasoning: text.slice(opened[0].length, end).trimEnd(), content: text.slice(end + 8).trimStart()};
  }
  if (!isWhole && "<think>".startsWith(text.trimStart())) return {reasoning: "", content: ""};
  const closed = text.includes("</think>") ? /^<\/think>[ \t]*$/m.exec(text) : null;
  if (!closed) return {reasoning: "", content: text};
  const content = text.slice(closed.index + closed[0].length).trimStart();
  return {reasoning: text.slice(0, closed.index).trimEnd(), content};
}

/* The text without the beginning of a mark at its end, which may still be completed. */
function withoutPart(text, mark) {
  for (let length = mark.length - 1; length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return text.slice(0, -length);
  return text;
}

/* Puts the pieces of a stream together: reasoning, content and counts. `now` is in milliseconds. */
export class Answer {
  constructor(begun = "") {
    this.begun = begun;
    this.raw = "";
    this.sent = "";
    this.reason = "";
    this.usage = this.timings = null;
    this.progress = null;
    this.isDone = this.isWhole = false;
    this.times = {first: 0, last: 0, thinking: 0, thought: 0};
  }
  get hasText() { return Boolean(this.raw || this.sent); }
  get parts() {
    const {reasoning, content} = this.sent ? {content: this.raw.trimStart()} : splitThinking(this.raw, this.isWhole);
    return {reasoning: this.sent || reasoning, content: this.begun + content};
  }
  take(event, now) {
    if (event.error) throw new AnswerError(event.error.message ?? String(event.error), event.error.code ?? "");
    if (event.done) this.isDone = true;
    if (event.usage) this.usage = event.usage;
    if (event.timings) this.timings = event.timings;
    if (event.prompt_progress) this.progress = event.prompt_progress;
    const choice = event.choices?.[0], delta = choice?.delta ?? {};
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    const thought = delta.reasoning_content ?? delta.reasoning ?? "", text = delta.content ?? "";
    if (!thought && !text) return;
    this.sent += thought;
    this.raw += text;
    this.time(now);
  }
  time(now) {
    this.times.first ||= now;
    this.times.last = now;
    const {reasoning, content} = this.parts;
    if (reasoning) this.times.thinking ||= now;
    if (reasoning && content) this.times.thought ||= now;
  }
  /* Seconds of thinking until now, or until the answer began. */
  thoughtSeconds(now) {
    const {thinking, thought} = this.times;
    return thinking ? Math.max(0, (thought || now) - thinking) / 1000 : 0;
  }
  /* How the stream ended: a key of ENDS, or `stop`. context: positions of the model, if they are known. */
  end(context) {
    if (!this.reason) return "lost";
    if (this.reason !== "length") return "stop";
    return context && this.usage?.total_tokens >= context ? "context" : "length";
  }
  /* Tokens per second after the first one: as the server counts them, else as they came here. */
  get rate() {
    const ms = this.times.last - this.times.first;
    return this.timings?.predicted_per_second || (ms > 0 ? (this.usage.completion_tokens - 1) / ms * 1000 : 0);
  }
  figures() {
    if (!this.usage) return "";
    const {completion_tokens: made, prompt_tokens: prompt, prompt_tokens_details: details} = this.usage;
    const rate = made > 1 && this.rate > 0 ? `, ${this.rate.toFixed(1)} tokens/s` : "";
    return `${made} ${made === 1 ? "token" : "tokens"}${rate}; prompt ${prompt}, of these ${details?.cached_tokens ?? 0} cached`;
  }
}

/* Sends a request and gives each event to the answer; `onPiece` is called after each piece of the stream. Raises
   AnswerError, and what an aborted fetch raises. */
export async function stream(body, {headers, signal, answer, onPiece, silenceMs = SILENCE_MS}) {
  const silence = new AbortController();
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: {"Content-Type": "application/json", ...headers}, body: JSON.stringify(body),
    signal: AbortSignal.any([signal, silence.signal]),
  }).catch(error => { throw signal.aborted ? error : lost(); });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let timer = 0;
  try {
    for (let rest = ""; !answer.isDone;) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), silenceMs);
      const {done, value} = await reader.read();
      if (done) break;
      const come = events(rest + value);
      rest = come.rest;
      for (const event of come.made) answer.take(event, performance.now());
      onPiece();
    }
  } catch (error) {
    throw error instanceof AnswerError || signal.aborted ? error : lost();
  } finally { clearTimeout(timer); }
  if (!answer.reason && !answer.isDone) throw lost();
}

const lost = () => new AnswerError("The server does not answer.", "lost");

async function refusal(response) {
  const error = (await response.json().catch(() => null))?.error ?? {};
  const message = error.message ?? `The server answered with status ${response.status} and no reason.`;
  const isGateway = response.status === 502 || response.status === 504;
  return new AnswerError(message, isGateway ? "lost" : error.code ?? "", Number(response.headers.get("Retry-After")));
}
