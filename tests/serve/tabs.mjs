export function simulation(conversations, ConversationStore) {
  /* For test_serve_page_conversations.py: tabs with a storage each, as browsers have them: a write is seen by the others later, in the order of arrival. */
  class Disk {
    constructor() { this.tabs = []; this.arriving = []; }
    open() {
      const kept = this.tabs.length ? {...this.tabs[0].storage} : {}, tab = {inbox: [], outbox: []};
      tab.storage = Object.create({
        getItem(name) { return this[name] ?? null; },
        setItem(name, text) { this[name] = text; tab.outbox.push([name, text]); },
        removeItem(name) { delete this[name]; tab.outbox.push([name, null]); },
      });
      Object.assign(tab.storage, kept);
      tab.store = new ConversationStore(tab.storage);
      this.tabs.push(tab);
      return tab;
    }
    /* One write of a tab arrives, and goes to the others. */
    arrive(tab) {
      const write = tab.outbox.shift();
      if (write) for (const other of this.tabs) if (other !== tab) other.inbox.push(write);
    }
    deliver(tab) {
      const [name, text] = tab.inbox.shift() ?? [];
      if (!name) return;
      if (text === null) delete tab.storage[name]; else tab.storage[name] = text;
      tab.store.onStorage(name, text);
    }
    get isQuiet() { return this.tabs.every(tab => !tab.inbox.length && !tab.outbox.length); }
  }
  let seed = 1;
  const chance = most => { seed = (seed * 1103515245 + 12345) % 2147483648; return Math.floor(seed / 65536) % most; };
  function play() {
    const disk = new Disk(), written = [];
    const first = disk.open(), talk = conversations.newConversation();
    const root = conversations.append(talk, null, {role: "user", content: "0"});
    first.store.save(talk);
    const tabs = [first, disk.open(), disk.open()];
    for (let turn = 0; turn < 12; turn++) {
      const tab = tabs[chance(3)], mine = tab.store.all.get(talk.id);
      const path = conversations.path(mine), after = path[chance(path.length)];
      const message = conversations.append(mine, after.id, {role: "assistant", content: "a", end: ""});
      tab.store.save(mine);
      message.content += "b";
      message.end = "stop";
      tab.store.save(mine);
      written.push(message.id);
      for (let i = chance(4); i > 0; i--) { disk.arrive(tabs[chance(3)]); disk.deliver(tabs[chance(3)]); }
    }
    let rounds = 0;
    for (; !disk.isQuiet && rounds < 10000; rounds++) { const tab = tabs[chance(3)]; disk.arrive(tab); disk.deliver(tab); }
    const later = disk.open().store.all.get(talk.id);
    const all = [...tabs.map(tab => tab.store.all.get(talk.id)), later];
    return {rounds, lost: all.flatMap(each => written.filter(id => conversations.find(each, id)?.content !== "ab"))};
  }
  return play;
}
