"""A published model as a user has it: fetched by pip, found by its name, answering in sentences."""

from __future__ import annotations

from aerie.cli import package_models
from aerie.cli.command_line import main
from aerie.engine.tokenizer import load_tokenizer


def test_it_answers(smollm2, capfd):
    assert smollm2 == package_models.package_file("smollm2")
    assert (
        main(["run", "--model", "smollm2", "--prompt", "What is the capital of Japan?", "--n-tokens", "16"])
        == 0
    )
    assert capfd.readouterr().out == "The capital of Japan is Tokyo.\n"


def test_its_chat_template_and_control_tokens(smollm2):
    tokenizer = load_tokenizer(smollm2)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi <|im_end|>"}])
    begin, end = (tokenizer.added_tokens()[token] for token in ("<|im_start|>", "<|im_end|>"))
    assert (ids.count(begin), ids.count(end)) == (3, 2)
    assert tokenizer.decode(ids).endswith("user\nHi <|im_end|>\nassistant\n")
    assert tokenizer.encode("Hello, world! 2026") == [19556, 28, 905, 17, 216, 34, 32, 34, 38]
