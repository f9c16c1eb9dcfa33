"""Conversations of the chat page, in node: versions, files, storage, two tabs."""

from __future__ import annotations

import json

import pytest

from tests.serve.scripts import in_node


def test_versions_of_a_question_and_of_an_answer() -> None:
    before = """
    const {append, choose, newConversation, path, versions, toMarkdown} = conversations;
    const talk = newConversation();
    const question = append(talk, null, {role: "user", content: "One?"});
    const first = append(talk, question.id, {role: "assistant", content: "1", end: "stop"});
    const next = append(talk, first.id, {role: "user", content: "And two?"});
    const second = append(talk, question.id, {role: "assistant", content: "2", made: Date.now() + 1});
    const contents = () => path(talk).map(each => each.content);
    const shown = [contents()];
    choose(talk, first); shown.push(contents());
    choose(talk, second); shown.push(contents());
    """
    made = in_node("{shown, all: versions(talk, first).map(each => each.content), title: talk.title}", before)
    assert made == {
        "shown": [["One?", "2"], ["One?", "1", "And two?"], ["One?", "2"]],
        "all": ["1", "2"],
        "title": "One?",
    }


def test_what_a_file_says_is_data() -> None:
    """Whatever is imported: each message can be reached, and nothing is of a wrong type."""
    hostile = [
        {
            "messages": [
                {"id": "a", "parent": "b", "role": "user", "content": "x"},
                {"id": "b", "parent": "a"},
            ]
        },
        {
            "id": "__proto__",
            "title": 7,
            "system": None,
            "leaf": "none",
            "messages": [
                {"id": "a", "parent": "b", "role": "user", "content": "1"},
                {
                    "id": "b",
                    "parent": "a",
                    "role": "assistant",
                    "content": "2",
                    "figures": {},
                    "thought": "3",
                },
                {"id": "c", "parent": "gone", "role": "user", "content": "3", "made": "x"},
                {"id": "d", "parent": "d", "role": "user", "content": "4"},
                {"id": "<x>", "parent": None, "role": "user", "content": "5"},
                {"id": "e", "parent": None, "role": "system", "content": "6"},
                None,
                7,
            ],
        },
    ]
    made = in_node(f"{json.dumps(hostile)}.map(conversations.fromJson)")
    assert [(each["id"], each["parent"]) for each in made[0]["messages"]] == [("a", None)]
    assert [(each["id"], each["parent"]) for each in made[1]["messages"]] == [
        *(("a", None), ("b", "a"), ("c", None), ("d", None))
    ]
    assert made[1]["title"] == "New conversation"
    assert made[1]["leaf"] == "d"
    assert "figures" not in made[1]["messages"][1]
    assert in_node("[null, 7, {}, {messages: 7}].map(conversations.fromJson)") == [None] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "The file is no JSON. Import takes what Export as JSON wrote."),
        ("{}", "The file has no conversations. Import takes what Export as JSON wrote."),
        ("[]", "The file has no conversations. Import takes what Export as JSON wrote."),
        ('{"conversations": []}', "The file has no conversations. Import takes what Export as JSON wrote."),
    ],
)
def test_a_file_that_is_no_export(text: str, message: str) -> None:
    before = (
        f"let told = null; try {{ conversations.fromFile({json.dumps(text)}); }} "
        "catch (error) { told = error.message; }"
    )
    assert in_node("told", before) == message


def test_conversations_of_the_older_form_are_read() -> None:
    """Lists of messages, and lists that were written over: each list is a path of the tree."""
    one, two = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "figures": "3 tokens"},
    )
    other = {"role": "assistant", "content": "Good day", "wrong": "it broke"}
    old = {
        "id": "5-x",
        "title": "Hi",
        "system": "",
        "messages": [one, two],
        "versions": [[one, other], [one]],
    }
    made = in_node(
        "{shown: conversations.path(talk), all: conversations.versions(talk, conversations.path(talk)[1])}",
        f"const talk = conversations.fromJson({json.dumps(old)});",
    )
    assert [each["content"] for each in made["shown"]] == ["Hi", "Hello"]
    assert [(each["content"], each["end"], each.get("note")) for each in made["all"]] == [
        ("Good day", "error", "it broke"),
        ("Hello", "stop", None),
    ]


def test_no_turn_of_any_tab_is_lost() -> None:
    """Three tabs write one conversation, and their writes pass each other: in the end all have every turn."""
    played = in_node("Array.from({length: 30}, simulation(conversations, ConversationStore))")
    assert max(each["rounds"] for each in played) < 10000
    assert [each["lost"] for each in played] == [[]] * 30


def test_a_write_keeps_what_is_stored() -> None:
    """Also where the event of another tab's write has not come yet."""
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; }, setItem(name, text) { this[name] = text; },
    });
    const one = new ConversationStore(kept), talk = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "Hi"});
    one.save(talk);
    const two = new ConversationStore(kept), same = two.all.get(talk.id);
    conversations.append(talk, talk.leaf, {role: "assistant", content: "From one", end: "stop"});
    conversations.append(same, same.leaf, {role: "assistant", content: "From two", end: "stop"});
    one.save(talk);
    two.save(same);
    """
    assert in_node("same.messages.map(each => each.content).sort()", before) == ["From one", "From two", "Hi"]


def test_a_full_storage_is_reported_and_keeps_what_it_has() -> None:
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; },
      setItem(name, text) { if (text.length > 2000) throw new Error("full"); this[name] = text; },
      removeItem(name) { delete this[name]; },
    });
    const told = [], store = new ConversationStore(kept, full => told.push(full));
    const talk = conversations.newConversation(), other = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "short"});
    store.save(talk);
    const before = kept[Object.keys(kept)[0]];
    conversations.append(talk, talk.leaf, {role: "assistant", content: "x".repeat(3000), end: "stop"});
    const fits = [store.save(talk), store.save(other)];
    const same = kept[`aerie.conversation.${talk.id}`] === before;
    store.remove(talk);
    """
    made = in_node("{told, fits, same, left: [...store.all.keys()].length}", before)
    assert made == {"told": [False, True, True, False], "fits": [False, True], "same": True, "left": 1}


def test_an_import_adds_only_what_is_missing() -> None:
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; }, setItem(name, text) { this[name] = text; },
    });
    const store = new ConversationStore(kept), talk = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "Hi"});
    store.save(talk);
    const file = conversations.toFile([talk]);
    const reply = {role: "assistant", content: "Hello", reasoning: "Greet.", end: "stop"};
    conversations.append(talk, talk.leaf, reply);
    store.save(talk);
    const added = [store.add(conversations.fromFile(file)), store.add(conversations.fromFile(file))];
    """
    made = in_node(
        "{added, count: talk.messages.length, markdown: conversations.toMarkdown(talk), "
        "name: conversations.fileName('Café, what?', 'md')}",
        before,
    )
    markdown = "# Hi\n\n## You\n\nHi\n\n## Model\n\n> Greet.\n\nHello\n"
    assert made == {"added": [0, 0], "count": 2, "markdown": markdown, "name": "cafe-what.md"}
