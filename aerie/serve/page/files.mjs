/* Conversations to files and back. */

import {fileName, fromFile, toFile, toMarkdown} from "./conversations.mjs";
import {byId, make} from "./dom.mjs";

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], {type}));
  make("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/* conversation(): the one that is shown. page: {notify(text, options), onImport(conversation)}. */
export function addFiles(store, conversation, page) {
  byId("export-markdown").onclick = () =>
    download(fileName(conversation().title, "md"), toMarkdown(conversation()), "text/markdown");
  byId("export-json").onclick = () => download(fileName(conversation().title, "json"), toFile([conversation()]), "application/json");
  byId("export-all").onclick = () => download("aerie-conversations.json", toFile(store.newestFirst()), "application/json");
  byId("import").onchange = async () => {
    const [file] = byId("import").files;
    byId("import").value = "";
    if (file) take(store, await file.text(), page);
  };
}

function take(store, text, page) {
  try {
    const conversations = fromFile(text), added = store.add(conversations);
    const rest = conversations.length - added;
    page.notify(`Imported: ${added} new, ${rest} that ${rest === 1 ? "was" : "were"} here already.`, {ms: 8000});
    page.onImport(store.all.get(conversations[0].id));
  } catch (error) { page.notify(error.message, {isWrong: true}); }
}
