"""Tokenizer, chat template, and text that grows token by token."""

import json
import random
import re

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.sandbox import BoundedProcess, Limits
from aerie.engine.errors import CheckpointError, PromptError
from aerie.engine.tokenizer import load_tokenizer
from aerie.engine.tool_calls import Tool, Tools
from aerie.llama32_1b.synthetic.tokenizer import make_tokenizer
from tests.engine.checkpoints import TEMPLATE

TEXTS = [
    "What is the capital of France?",
    "naïve café, Größe 10 €",
    "日本語のテキスト",
    "🙂👩‍👩‍👧 and ✂️",
    "tabs\tand\nnew lines  and  blanks ",
    "",
]


@pytest.fixture
def tokenizer(make_checkpoint):
    return load_tokenizer(make_checkpoint())


def pieces(tokenizer, token_ids):
    stream = tokenizer.incremental_detokenizer()
    return [stream.feed(token) for token in token_ids] + [stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_stream_adds_up_and_never_breaks_a_character(tokenizer, text):
    token_ids = tokenizer.encode(text)
    given = pieces(tokenizer, token_ids)
    assert "".join(given) == text == tokenizer.decode(token_ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(given)


def test_character_of_several_tokens_comes_whole(tokenizer):
    token_ids = tokenizer.encode("é")[1:]
    assert len(token_ids) == 2
    assert pieces(tokenizer, token_ids) == ["", "é", ""]


def test_unfinished_character_is_shown_at_the_end_only(tokenizer):
    token_ids = tokenizer.encode("a€")[1:-1]
    given = pieces(tokenizer, token_ids)
    assert given[0] == "a"
    assert given[1:-1] == [""] * (len(token_ids) - 1)
    assert "".join(given) == tokenizer.decode(token_ids)


def test_stream_of_any_tokens_adds_up(tokenizer):
    numbers = random.Random(0)
    for _ in range(20):
        token_ids = [numbers.randrange(372) for _ in range(60)]
        assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_blanks_between_pieces_survive_a_decoder_that_strips(tmp_path):
    """SentencePiece decoders drop the blank before the first word; pieces must still be joined by blanks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"▁the": 0, "▁herd": 1, "s": 2}, unk_token="s"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert pieces(tokenizer, [0, 1, 2, 0]) == ["the", " herd", "s", " the", ""]
    assert not tokenizer.has_chat_template


CONVERSATIONS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    [{"role": "system", "content": " Be <brief> & kind. "}, {"role": "user", "content": "日本語 🙂\n\n"}],
]
TEMPLATES = [
    TEMPLATE,
    # blocks that are trimmed, the filters and functions that transformers adds, loop controls
    """{{ bos_token }}
    {% for m in messages %}
      {% if m.role == 'system' %}{% continue %}{% endif %}
      {{ m | tojson }}{{ [m.content] | tojson(indent=2) }}{{ eos_token }}
    {% endfor %}
    {% if strftime_now is defined %}{{ strftime_now('%Y') | length }}{% endif %}
    {% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}
    {% if add_generation_prompt %}<|assistant|>{% endif %}
    """,
]


def theirs_of(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def assert_alike(folder, tokenizer):
    theirs = theirs_of(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text, control_tokens=True)
        assert ids == theirs.encode(text)
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for messages in CONVERSATIONS if tokenizer.has_chat_template else ():
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_chat(messages) == expected


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("in_file", [False, True])
def test_it_does_what_transformers_does(damaged, checkpoints, template, in_file):
    (damaged / "chat_template.jinja").unlink(missing_ok=True)
    checkpoints.edit_json(damaged / "tokenizer_config.json", chat_template=None if in_file else template)
    if in_file:
        (damaged / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(damaged)
    assert_alike(damaged, tokenizer)


def test_the_demos_and_a_synthetic_one_do_too(tmp_path):
    assert_alike(DEMO_FOLDER, load_tokenizer(DEMO_FOLDER))
    make_tokenizer(2000).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert_alike(tmp_path, tokenizer)


def with_template(folder, checkpoints, template):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    checkpoints.edit_json(folder / "tokenizer_config.json", chat_template=template)
    return load_tokenizer(folder)


TURN = "<|{{ m.role }}|>{{ m.content%s }}{{ eos_token }}"
CONTINUED = [TURN % "", TURN % " | trim", TURN % ".strip() + '!'", "{{ messages[-1].content }} said <|user|>"]
BEGUN = ["The capital of", " The capital ", "a", "  ", "", "<|user|>", "日本\n\n"]


@pytest.mark.parametrize("each", CONTINUED)
def test_an_answer_goes_on_as_with_transformers(damaged, checkpoints, each):
    prompt = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    template = each if "messages" in each else "{% for m in messages %}" + each + "{% endfor %}" + prompt
    tokenizer = with_template(damaged, checkpoints, template)
    theirs = theirs_of(damaged)
    for begun in BEGUN:
        messages = [{"role": "user", "content": "a hi"}, {"role": "assistant", "content": begun}]
        text = tokenizer.chat_text(messages, continues=True)
        assert text == theirs.apply_chat_template(messages, continue_final_message=True, tokenize=False)
        ids = theirs.apply_chat_template(messages, continue_final_message=True, return_dict=False)
        if "<|" not in begun:  # which is text here
            assert tokenizer.encode_chat(messages, continues=True) == ids


def test_what_no_answer_goes_on_with(damaged, checkpoints):
    tokenizer = with_template(damaged, checkpoints, "{{ messages[0].content }}")
    turn = {"role": "assistant", "content": "x"}
    with pytest.raises(PromptError, match="does not write the last message as it stands, so that no answer"):
        tokenizer.encode_chat([*CONVERSATIONS[0], turn], continues=True)
    for messages in ([], CONVERSATIONS[0], [{**turn, "tool_calls": [{"function": {}}]}]):
        with pytest.raises(PromptError, match="and the last message is none; end with one, or leave out"):
            tokenizer.encode_chat(messages, continues=True)


REFUSALS = {
    "{{ raise_exception('users first') }}": r"users first\); change its messages, or leave out the system",
    "{% if tools|length > 0 %}T{% endif %}": r"object of type 'NoneType' has no len\(\)\); change its "
    "messages, or mend the template in the checkpoint's folder",
    "{{ 'a' + 1 }}": "can only concatenate str",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "maximum recursion depth exceeded",
    "{% for i in range(10**9) %}{% endfor %}": "Range too big",
    "{{ 'a' * 2000000000 }}": "it took more than 512 MiB of memory",
    "{{ '%2000000000d' % 1 }}": "it took more than 512 MiB of memory",
    "{{ 'a' | center(2000000000) }}": "it took more than 512 MiB of memory",
    "{{ ['a' * 10**6] * 10**9 }}": "it took more than 512 MiB of memory",
    "{% for i in range(20) %}{{ 'a' * 10**6 }}{% endfor %}": "it made more than 16 MiB",
    "{% set a = range(90000) %}{% for i in a %}{% for j in a %}{% endfor %}{% endfor %}": "it took more than "
    "0.5 s of processor time",
    "{{ ''.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe",
    "{{ '\\ud800' }}": "surrogates not allowed",
    "{% if %}": "Expected an expression",
    "{% include 'x' %}": "no loader for this environment",
}


@pytest.fixture(scope="module")
def within_half_a_second():
    return BoundedProcess("aerie.engine.template_renderer", Limits(cpu_s=0.5))


@pytest.mark.parametrize("template", REFUSALS)
def test_a_template_that_refuses(damaged, checkpoints, template, within_half_a_second, monkeypatch):
    """Or fails, or goes on without end: one line, and the next conversation is served."""
    monkeypatch.setattr("aerie.engine.chat_template.RENDERING", within_half_a_second)
    with pytest.raises(PromptError, match=r"^the checkpoint's chat template refuses this") as caught:
        with_template(damaged, checkpoints, template).encode_chat(CONVERSATIONS[0])
    assert re.search(REFUSALS[template], str(caught.value))
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    good = with_template(damaged, checkpoints, TEMPLATE)
    assert good.decode(good.encode_chat(CONVERSATIONS[0])) == "hi"


def test_a_template_that_never_was_one(damaged, checkpoints):
    with pytest.raises(PromptError, match=r"template is 10000000 characters long, and 1000000 is the limit"):
        with_template(damaged, checkpoints, "a" * 10**7).encode_chat(CONVERSATIONS[0])
    for wrong in (5, [{"name": "default", "template": 5}]):
        with pytest.raises(CheckpointError, match=r"chat_template is neither a text nor a list of templates"):
            with_template(damaged, checkpoints, wrong)


def test_several_templates(damaged, checkpoints):
    tools = Tools((Tool("weather"),))
    named = [
        {"name": name, "template": f"{name}{{# <tool_call> #}}{{{{ tools }}}}"}
        for name in ("rag", "tool_use", "default")
    ]
    tokenizer = with_template(damaged, checkpoints, named)
    assert tokenizer.chat_text(CONVERSATIONS[0]) == "defaultNone"
    assert tokenizer.chat_text(CONVERSATIONS[0], tools).startswith("tool_use")
    assert tokenizer.chat_template is None
    with pytest.raises(
        PromptError,
        match=r"several chat templates \(rag, tool_use\), and none is named default, which is for",
    ):
        with_template(damaged, checkpoints, named[:2]).encode_chat(CONVERSATIONS[0])
    assert (
        with_template(damaged, checkpoints, named[:1] + named[2:]).chat_text([], tools).startswith("default")
    )


def test_arguments_of_a_template(damaged, checkpoints):
    tokenizer = with_template(
        damaged, checkpoints, "{{ enable_thinking is defined and enable_thinking }}{{ other }}{{ documents }}"
    )
    assert tokenizer.chat_text([]) == "FalseNone"
    assert tokenizer.chat_text([], None, {"enable_thinking": True, "self": 1, "documents": []}) == "True[]"
    tokenizer.template_arguments = {"enable_thinking": True, "other": "o"}
    assert tokenizer.chat_text([]) == "TrueoNone"
    assert tokenizer.chat_text([], None, {"enable_thinking": False}) == "FalseoNone"
    assert tokenizer.encode_chat([]) == tokenizer.encode("TrueoNone", special=False)
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "pad_token", "raise_exception"):
        with pytest.raises(
            PromptError, match=rf"^{name} cannot be given to the chat template, which has a value"
        ):
            tokenizer.chat_text([], None, {name: 1})
        with pytest.raises(PromptError, match=rf"^{name} cannot be given"):
            tokenizer.template_arguments = {name: 1}


def added(content, **properties):
    return {"content": content, "special": True, "lstrip": False, "rstrip": False, **properties}


@pytest.mark.parametrize(
    "config",
    [
        {"pad_token": "<|another|>"},
        {"eos_token": added("<|another|>", lstrip=True, __type="AddedToken")},
        {"image_token": "<|user|>"},
        {"extra_special_tokens": ["the"]},
        {"additional_special_tokens": ["the"]},
        {"added_tokens_decoder": {"600": added("herd")}},
        {"split_special_tokens": True},
        {
            "chat_template": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% endfor %}"
        },
        {"chat_template": [{"name": "default", "template": TEMPLATE}]},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_transformers_would_add_is_left_to_it(damaged, checkpoints, config):
    if "chat_template" in config:
        (damaged / "chat_template.jinja").unlink(missing_ok=True)
    checkpoints.edit_json(damaged / "tokenizer_config.json", **config)
    tokenizer = load_tokenizer(damaged)
    assert_alike(damaged, tokenizer)


def test_a_token_with_its_properties(damaged, checkpoints):
    typed = added("<|eos|>", __type="AddedToken")
    checkpoints.edit_json(damaged / "tokenizer_config.json", eos_token=typed)
    tokenizer = load_tokenizer(damaged)
    assert_alike(damaged, tokenizer)
    checkpoints.edit_json(damaged / "tokenizer_config.json", eos_token=[5])
    with pytest.raises(CheckpointError, match=r"eos_token is \[5\], which is no token: neither a text nor"):
        load_tokenizer(damaged)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json"])
def test_files_that_add_tokens_are_left_to_it(damaged, checkpoints, name):
    checkpoints.edit_json(damaged / "tokenizer_config.json", added_tokens_decoder=None)
    content = {"pad_token": "<|more|>"} if name.startswith("special") else {"<|more|>": 600}
    (damaged / name).write_text(json.dumps(content))
    tokenizer = load_tokenizer(damaged)
    assert_alike(damaged, tokenizer)


def test_limits_in_tokenizer_json_do_not_cut(damaged):
    path = damaged / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": cut}))
    tokenizer = load_tokenizer(damaged)
    assert_alike(damaged, tokenizer)


def test_special_tokens_are_not_text(tokenizer):
    assert tokenizer.encode("a")[0] == 0
    assert tokenizer.decode([0, *tokenizer.encode("a"), 2, 1]) == "a"


CLASSES = ["LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "T5TokenizerFast", "X"]


@pytest.mark.parametrize("name", CLASSES)
def test_tokenizer_json_rules_whatever_class_is_named(damaged, checkpoints, name, monkeypatch, capfd):
    """No class rebuilds it, no setting of a class changes it, and no code of a checkpoint runs."""
    from tokenizers import Tokenizer

    code = "raise SystemExit('ran')"
    (damaged / "tokenization_x.py").write_text(code)
    settings = {"tokenizer_class": name, "auto_map": {"AutoTokenizer": [None, "tokenization_x.XTokenizer"]}}
    flags = {"add_bos_token": False, "add_eos_token": True, "add_prefix_space": True, "legacy": False}
    checkpoints.edit_json(damaged / "tokenizer_config.json", **settings, **flags)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    ours, theirs = load_tokenizer(damaged), Tokenizer.from_file(str(damaged / "tokenizer.json"))
    for text in [*TEXTS, "<|end|>a"]:
        ids = theirs.encode(text).ids
        assert ours.encode(text, control_tokens=True) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_that_is_code_alone(damaged, checkpoints, monkeypatch):
    """There is a tokenizer.model, and the class that would read it comes with the checkpoint."""

    def needing_code(folder):
        raise ValueError("The repository contains custom code ... pass trust_remote_code=True")

    monkeypatch.setattr("aerie.engine.tokenizer.read_tokenizer", needing_code)
    with pytest.raises(CheckpointError, match=r"is code of the checkpoint, of which nothing is executed; "):
        load_tokenizer(damaged)


def test_a_lack_of_memory_is_no_damage(damaged, monkeypatch):
    def end(*_):
        raise MemoryError

    monkeypatch.setattr("aerie.engine.tokenizer.read_tokenizer", end)
    with pytest.raises(MemoryError):
        load_tokenizer(damaged)


MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)


def test_mistrals_tokenizer_without_padding_and_with_its_template(damaged, checkpoints):
    """As Mistral-7B-Instruct has it: LlamaTokenizer, no pad token, a template without a system."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces_of = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"[INST]/hiyes"]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces_of))}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    inner.save(str(damaged / "tokenizer.json"))
    (damaged / "chat_template.jinja").write_text(MISTRAL_TEMPLATE)
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
    }
    (damaged / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": None}))
    checkpoints.edit_json(damaged / "config.json", model_type="mistral", architectures=["MistralForCausalLM"])
    tokenizer = load_tokenizer(damaged)
    ids = tokenizer.encode_chat([*CONVERSATIONS[1], {"role": "user", "content": "日 yes"}])
    assert ids.count(1) == ids.count(2) == 1, "one <s> at the beginning, </s> after the answer"
    assert ids[0] == 1
    assert tokenizer.decode(ids).replace(" ", "") == "[INST]hi[/INST]yes[INST]日yes[/INST]"
    assert "".join(pieces(tokenizer, ids[1:])) == tokenizer.decode(ids[1:])
    with pytest.raises(PromptError, match=r"refuses this conversation \(Conversation roles must alternate"):
        tokenizer.encode_chat(CONVERSATIONS[2])


ONLY_MODEL = (
    r"has tokenizer\.model and no tokenizer\.json, which is what is read: fetch tokenizer\.json of the same"
)


def test_tokenizer_model_alone(damaged, monkeypatch, capsys):
    for path in damaged.glob("tokenizer*"):
        path.unlink()
    file = damaged / "tokenizer.model"
    file.write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0")
    present = {"sentencepiece": None, "google.protobuf": None, "pip": "there"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: present[name])
    with pytest.raises(CheckpointError, match=rf"{ONLY_MODEL} .*bin/pip install sentencepiece protobuf`$"):
        load_tokenizer(damaged)
    present.update({"sentencepiece": "there", "pip": None})
    with pytest.raises(CheckpointError, match=rf"{ONLY_MODEL} .* takes `uv pip install protobuf`$"):
        load_tokenizer(damaged)
    file.write_text(
        "IQ== 0\nIg== 1\n"
    )  # as Meta's own Llama 3, which no converter knows how to split text for
    with pytest.raises(CheckpointError, match=rf"{ONLY_MODEL} model from Hugging Face$"):
        load_tokenizer(damaged)
    assert capsys.readouterr().err == ""


def test_tokenizer_model_that_cannot_be_converted(damaged, monkeypatch):
    def convert(folder):
        raise ValueError(f"Error parsing line {'x' * 5000}")

    (damaged / "tokenizer.json").unlink()
    (damaged / "tokenizer.model").write_bytes(b"\0")
    monkeypatch.setattr("aerie.engine.tokenizer.read_tokenizer", convert)
    with pytest.raises(CheckpointError, match=r"x{100} \.\.\.; fetch tokenizer\.json of the same") as caught:
        load_tokenizer(damaged)
    assert len(str(caught.value)) < 600


def test_missing_and_damaged(damaged):
    path = damaged / "tokenizer.json"
    path.write_text(path.read_text()[:500])
    with pytest.raises(CheckpointError, match=r"cannot load the tokenizer in .*; fetch it again"):
        load_tokenizer(damaged)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"there is no tokenizer\.json in .*; the checkpoint is incomp"):
        load_tokenizer(damaged)
