"""What the chat page sends, what comes, and what it tells of the server, in node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.scripts import in_node


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            'events("data: {\\"a\\":1}\\n\\n: still at work\\n\\ndata: [DONE]\\n\\ndata: {\\"b\\"")',
            {"made": [{"a": 1}, {"done": True}], "rest": 'data: {"b"'},
        ),
        (
            'requestBody([{role: "user", content: "Hi", figures: "x"}, {role: "assistant", content: ""}], '
            '"Be brief.", {temperature: "0", seed: "", top_p: "0.5", thinking: "off", model: "demo"})',
            {
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_progress": True,
                "temperature": 0,
                "top_p": 0.5,
                "model": "demo",
                "chat_template_kwargs": {"enable_thinking": False},
            },
        ),
        (
            'requestBody([{role: "assistant", content: "Once"}], "", {}, true)',
            {
                "messages": [{"role": "assistant", "content": "Once"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_progress": True,
                "continue_final_message": True,
            },
        ),
        ('splitThinking("<think>\\nso\\n</think>\\n\\nyes")', {"reasoning": "so", "content": "yes"}),
        ('splitThinking("<think>so</thi")', {"reasoning": "so", "content": ""}),
        ('splitThinking("so\\n</think>\\nyes")', {"reasoning": "so", "content": "yes"}),
        ('splitThinking("<th")', {"reasoning": "", "content": ""}),
        ('splitThinking("<th", true)', {"reasoning": "", "content": "<th"}),
        (
            'splitThinking("The mark </think> ends it.")',
            {"reasoning": "", "content": "The mark </think> ends it."},
        ),
    ],
)
def test_what_is_sent_and_what_comes(expression: str, expected: Any) -> None:
    assert in_node(expression) == expected


def test_an_answer_is_put_together() -> None:
    before = """
    const answer = new Answer();
    const delta = fields => ({choices: [{delta: fields}]});
    answer.take({choices: [], prompt_progress: {processed: 4, total: 8}}, 0);
    answer.take(delta({role: "assistant", content: ""}), 500);
    answer.take(delta({reasoning_content: "Hm."}), 1000);
    answer.take(delta({content: "Yes"}), 3000);
    answer.take(delta({content: "."}), 3500);
    answer.take({choices: [{delta: {}, finish_reason: "length"}]}, 3500);
    answer.take({choices: [], usage: {prompt_tokens: 70, completion_tokens: 11, total_tokens: 81,
      prompt_tokens_details: {cached_tokens: 64}}}, 3500);
    const figures = [answer.figures()];
    answer.take({choices: [], timings: {predicted_per_second: 9.5}}, 3500);
    figures.push(answer.figures());
    const failed = new Answer();
    let error = null;
    try { failed.take({error: {message: "no room", code: "no_room"}}, 0); } catch (raised) { error = raised; }
    """
    made = in_node(
        "{parts: answer.parts, seconds: answer.thoughtSeconds(9999), figures, "
        "at: answer.progress, "
        "ends: [answer.end(4096), answer.end(81), answer.end(), failed.end()], "
        "error: [error.message, error.isPassing, error.isLost], "
        "known: [answer.end(81), failed.end()].map(end => ENDS[end])}",
        before,
    )
    assert made == {
        "parts": {"reasoning": "Hm.", "content": "Yes."},
        "seconds": 2,
        "figures": [f"11 tokens, {rate} tokens/s; prompt 70, of these 64 cached" for rate in ("4.0", "9.5")],
        "at": {"processed": 4, "total": 8},
        "ends": ["length", "context", "length", "lost"],
        "error": ["no room", True, False],
        "known": [
            "Cut: the context of the model is full. Begin a new conversation, or edit an earlier message.",
            "Cut: the connection to the server was lost.",
        ],
    }


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (
            None,
            "The server does not answer. If it was stopped, start it again with aerie serve: this page",
        ),
        ({"models": {"demo": "loaded"}}, ""),
        (
            {"models": {"demo": "loading"}, "error": {"message": "x", "code": "loading"}},
            "demo is being loaded.",
        ),
        (
            {
                "models": {"demo": "loading"},
                "progress": {"demo": {"title": "compiling", "done": 3, "total": 12, "what": "o_ffn_ar8"}},
            },
            "demo: compiling, 3 of 12 (o_ffn_ar8)",
        ),
        ({"models": {"demo": "waiting"}}, "demo waits until other models leave enough memory."),
        (
            {"error": {"message": "the server is stopping; use another one"}},
            "The server says: the server is stopping",
        ),
    ],
)
def test_what_the_server_does_is_shown_in_words(health: Any, text: str) -> None:
    assert in_node(f"describe({json.dumps(health)}).text").startswith(text)
