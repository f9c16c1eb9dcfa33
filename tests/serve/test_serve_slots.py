"""Slots: what the pool has of an answer, saved, in another server again, and forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import page_bytes
from aerie.engine.session import Session
from aerie.serve.cli import build_parser
from aerie.serve.service import ServerLimits
from aerie.serve.slot_files import SlotFiles, SlotFolder
from aerie.serve.slots import Slots
from tests import crafted

LONG = [5 + each % 900 for each in range(3 * PAGE_SIZE + 20)]
"""Three whole pages, and the beginning of one."""
GIB = 2**30


def ask(http: Any, prompt: Any = LONG, **more: Any) -> dict[str, Any]:
    asked = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 4, **more}
    answer = http.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def act(http: Any, action: str, slot: Any = 3, **body: Any) -> Any:
    return http.post(f"/slots/{slot}?action={action}", json=body)


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


@pytest.fixture
def saving(serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server, with a folder for slots, none of which were used."""
    monkeypatch.setattr(serving.service, "slot_files", SlotFiles(SlotFolder(tmp_path, GIB)))
    monkeypatch.setattr(serving.service.worker, "slots", Slots())
    return serving


def pool_of(serving: Any) -> Any:
    return serving.service.require_loaded().scheduler.pool


def test_another_server_finds_what_was_saved(
    saving: Any, starting: Callable[..., Any], tmp_path: Path
) -> None:
    with saving.http as http:
        expected = ask(http, id_slot=3)
        saved = act(http, "save", filename="talk.bin").json()
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (3, "talk.bin", 3 * PAGE_SIZE)
    assert saved["n_written"] == (tmp_path / "talk.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    other = starting(ServerLimits(slot_folder=SlotFolder(tmp_path, GIB)))
    other.wait_until(lambda: other.service.opened)
    with other.http as http:
        restored = act(http, "restore", slot=0, filename="talk.bin").json()
        assert (restored["n_restored"], restored["n_read"]) == (3 * PAGE_SIZE, saved["n_written"])
        found = ask(http)
        assert act(http, "save", slot=0, filename="again").json()["n_saved"] == 3 * PAGE_SIZE
    assert cached(found) == 3 * PAGE_SIZE
    assert found["choices"] == expected["choices"]
    assert (tmp_path / "again").read_bytes() == (tmp_path / "talk.bin").read_bytes()
    pool_of(other).collect_released()
    assert pool_of(other).manager.free_count == pool_of(other).manager.page_count
    pool_of(other).manager.check_invariants()


def test_an_erased_slot_is_computed_again_except_shared_pages(saving: Any) -> None:
    prompt, branch = LONG[::-1], [*LONG[::-1][: 2 * PAGE_SIZE], *LONG]
    with saving.http as http:
        expected = ask(http, prompt, id_slot=1)
        assert cached(ask(http, prompt, id_slot=1)) == 3 * PAGE_SIZE
        ask(http, branch, id_slot=2)
        assert act(http, "erase", slot=1).json() == {"id_slot": 1, "n_erased": PAGE_SIZE}
        assert cached(again := ask(http, prompt, id_slot=1)) == 2 * PAGE_SIZE
        act(http, "erase", slot=2)
        assert http.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": 3 * PAGE_SIZE}
        assert act(http, "erase", slot=1).json()["n_erased"] == 0
        assert cached(anew := ask(http, prompt, id_slot=-1)) == 0
    assert expected["choices"] == again["choices"] == anew["choices"]


def test_slots_are_listed_and_a_conversation_stays_in_its_slot(saving: Any) -> None:
    with saving.http as http:
        first = ask(http, LONG)
        ask(http, LONG[100:])
        ask(http, [*LONG, 7, 8, 9])
        slots = http.get("/slots").json()
    assert [slot["id"] for slot in slots] == [*range(32)]
    assert [slot["n_prompt_tokens"] for slot in slots[:3]] == [len(LONG) + 3, len(LONG) - 100, 0]
    assert slots[0]["n_ctx"] == saving.service.require_loaded().session.model.positions
    assert (slots[0]["n_prompt_tokens_cache"], slots[0]["is_processing"]) == (3 * PAGE_SIZE, False)
    made = first["usage"]["completion_tokens"]
    assert slots[1]["next_token"][0]["n_decoded"] <= made
    assert slots[2]["next_token"] == [{"has_next_token": False, "n_remain": 0, "n_decoded": 0}]
    assert not any("prompt" in slot for slot in slots)


def test_slots_in_use(saving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with saving.http as http:
        assert http.get("/slots?fail_on_no_slot=1").status_code == 200
        slots = saving.service.worker.slots.to_json(512)
        busy = [{**slot, "is_processing": True} for slot in slots]
        monkeypatch.setattr(saving.service.worker.slots, "to_json", lambda _: busy)
        answer = http.get("/slots?fail_on_no_slot=1")
    assert refusal(answer) == (503, "all 32 slots are in use; try again")


def test_a_slot_is_saved_while_it_is_answered(saving: Any, tmp_path: Path) -> None:
    asked = {"prompt": LONG, "stream": True, "id_slot": 5, **saving.endless, "max_tokens": 200}
    with saving.http as http, http.stream("POST", "/v1/completions", json=asked) as stream:
        lines = stream.iter_lines()
        next(lines)
        with saving.http as other:
            assert other.get("/slots").json()[5]["is_processing"]
            assert act(other, "save", slot=5, filename="early").json()["n_saved"] >= 3 * PAGE_SIZE
    with safe_open(tmp_path / "early", "np") as file:
        assert file.get_tensor("token_ids").tolist()[: 3 * PAGE_SIZE] == LONG[: 3 * PAGE_SIZE]


@pytest.mark.parametrize("slot", ["32", "-1", "x", "99999999999999999999", "٣"])
def test_a_slot_that_is_not_there(saving: Any, slot: str) -> None:
    with saving.http as http:
        answer = act(http, "save", slot=slot, filename="a")
    assert refusal(answer) == (404, f"there is no slot {slot!r}; there are 0 to 31")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "a/b", "../a", "/etc/passwd", "a\\b", "ä", "a\n", "a" * 129]
)
def test_a_name_that_is_not_safe(saving: Any, name: str) -> None:
    with saving.http as http:
        ask(http, id_slot=3)
        answers = [refusal(act(http, action, filename=name)) for action in ("save", "restore")]
    for status, message in answers:
        assert status == 400
        assert (
            "give up to 128 letters, digits, '.', '-' and '_' of ASCII, the first of which is no" in message
        )


def test_what_cannot_be_done(saving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").symlink_to("/etc/passwd")
    with saving.http as http:
        wrong = refusal(act(http, "copy", filename="a"))
        assert wrong == (400, "action is 'copy'; give one of save, restore, erase, as /slots/0?action=save")
        assert refusal(http.post("/slots/3", json={}))[1].startswith("action is ''")
        assert refusal(act(http, "save"))[1].startswith("filename is None; give up to")
        nothing = "slot 3 has nothing: nobody asked with id_slot 3 yet, or it was erased"
        assert refusal(act(http, "save", filename="a")) == (400, nothing)
        ask(http, LONG[:30], id_slot=3)
        few = "it caches full pages of 64 tokens, and evicts them when it is full"
        assert few in refusal(act(http, "save", filename="a"))[1]
        for name in ("none", "elsewhere"):
            missing = f"no slot was saved as {name!r}; give the name that it was saved as"
            assert refusal(act(http, "restore", filename=name)) == (404, missing)
        assert refusal(act(http, "save", filename="a", model="other"))[0] == 404
        assert http.post("/v1/completions", json={"prompt": "a", "id_slot": 32}).status_code == 400
        monkeypatch.setattr(saving.service, "slot_files", SlotFiles(None))
        unsaved = "this server saves no slots; start it with --slot-save-path"
        assert refusal(act(http, "erase")) == (501, unsaved)


def test_a_save_of_less_keeps_what_was_saved(saving: Any, tmp_path: Path) -> None:
    with saving.http as http:
        ask(http, id_slot=3)
        ask(http, LONG[: PAGE_SIZE + 9], id_slot=4)
        assert "before" not in act(http, "save", filename="a").json()
        assert "before" not in act(http, "save", filename="a").json()  # the same again
        whole = (tmp_path / "a").read_bytes()
        for number in (1, 2):
            less = act(http, "save", slot=4, filename="a").json()
            assert (less["n_saved"], less.get("before")) == (PAGE_SIZE, "a.1" if number == 1 else None)
        assert (tmp_path / "a.1").read_bytes() == whole
        assert act(http, "restore", filename="a.1").json()["n_restored"] == 3 * PAGE_SIZE
        more = act(http, "save", filename="a").json()
        assert (more["n_saved"], "before" in more) == (3 * PAGE_SIZE, False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "a.1"]


def test_a_full_or_missing_folder(saving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_bytes(saving.service.require_loaded().session.model.kv_config)
    monkeypatch.setattr(saving.service, "slot_files", SlotFiles(SlotFolder(tmp_path, 4 * page)))
    with saving.http as http:
        ask(http, id_slot=3)
        assert act(http, "save", filename="a").status_code == 200
        assert act(http, "save", filename="a").status_code == 200  # in the place of the first
        status, message = refusal(act(http, "save", filename="b"))
        assert status == 507
        size = (tmp_path / "a").stat().st_size
        expected = (
            f"slot b would have about {3 * page} bytes, the others have {size}, and {4 * page} is the limit"
        )
        assert message.startswith(expected)
        (tmp_path / "a").unlink()

        def fails(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("aerie.engine.saved_sequence.write_atomic", fails)
        full = "cannot write b (No space left on device); name another file"
        assert refusal(act(http, "save", filename="b")) == (507, full)


def test_damaged_and_foreign_files_are_refused(saving: Any, tmp_path: Path) -> None:
    with saving.http as http:
        ask(http, id_slot=3)
        act(http, "save", filename="whole")
        whole, drawn = (tmp_path / "whole").read_bytes(), random.Random(7)
        refused = []
        for number in range(40):
            torn = bytearray(whole)
            place = drawn.randrange(len(torn)) if number % 2 else drawn.randrange(1200)
            if number % 4 == 0:
                del torn[place:]
            else:
                torn[place] ^= 1 << drawn.randrange(8)
            (tmp_path / "torn").write_bytes(torn)
            answer = act(http, "restore", filename="torn")
            assert answer.status_code == 400, (number, place)
            refused.append(answer.json()["error"]["message"])
        assert not any(str(tmp_path) in each for each in refused)
        assert {"torn is damaged: its checksum is another; nothing was restored"} < set(refused)
        assert any(each.startswith("torn is torn, or no sequence (") for each in refused)
        assert act(http, "restore", filename="whole").status_code == 200


def test_crafted_files_are_refused(saving: Any, tmp_path: Path) -> None:
    """Their checksums are right."""
    drawn, pool = random.Random(3), pool_of(saving)
    with saving.http as http:
        ask(http, id_slot=3)
        act(http, "save", filename="whole")
        free = pool.manager.free_count
        for number in range(6 * len(crafted.DAMAGES)):
            arrays, about = crafted.read(tmp_path / "whole")
            crafted.DAMAGES[number % len(crafted.DAMAGES)](drawn, arrays, about)
            crafted.write(tmp_path / "crafted", arrays, about)
            status, message = refusal(act(http, "restore", filename="crafted"))
            assert (status, message.startswith("crafted ")) == (400, True), (number, message)
            assert pool.manager.free_count == free
        arrays, about = crafted.read(tmp_path / "whole")
        crafted.write(tmp_path / "crafted", arrays, about)  # as it was
        assert act(http, "restore", filename="crafted").status_code == 200
        assert cached(ask(http)) == 3 * PAGE_SIZE


def test_a_file_of_another_model(saving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with saving.http as http:
        ask(http, id_slot=3)
        act(http, "save", filename="ours")
        session = saving.service.require_loaded().session
        others = {**session.provenance(session.model), "weights": "others"}
        monkeypatch.setattr(Session, "pages_provenance", lambda *_: others)
        status, message = refusal(act(http, "restore", filename="ours"))
    assert status == 400
    assert message.startswith("ours was made by weights ")
    assert message.endswith("hold for what made them alone: load that, or give the prompt again")


def test_no_room_for_what_was_saved(saving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(saving)
    with saving.http as http:
        ask(http, LONG[1:], id_slot=3)
        act(http, "save", filename="a")
        act(http, "erase")
        taken = pool.manager.allocate(pool.manager.free_count - 2)
        status, message = refusal(act(http, "restore", filename="a"))
        pool.manager.release(taken)
        assert status == 503
        assert message.startswith(
            f"the KV pool has 2 of its {pool.manager.page_count} pages of 64 positions free, and 3 are needed"
        )
        assert act(http, "restore", filename="a").json()["n_restored"] == 3 * PAGE_SIZE
        assert cached(ask(http, LONG[1:])) == 3 * PAGE_SIZE


def test_a_pool_that_two_backends_filled(saving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_of(saving), "first_key", b"of another")
    with saving.http as http:
        ask(http, id_slot=3)
        answers = [refusal(act(http, "save", filename="a"))]
    assert answers[0][0] == 400
    assert answers[0][1].startswith(
        "the KV pool has what two backends made, as one failed and another goes on"
    )


def test_words_become_a_folder(command_line: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command_line("serve", ["serve", "--slot-save-path", str(tmp_path / "file")])
    assert done.status == 2
    assert "file, and cannot be used (File exists); name another folder" in done.err
    words = ["serve", "--port", "0", "--replicas", "1", "--slot-save-path", str(tmp_path / "new")]
    done = command_line("serve", words)
    assert done.status == 2
    assert "--slot-save-path works with one engine, and with --replicas a client cannot name" in done.err
    assert build_parser().parse_args(words).slot_save_bytes == 16 * GIB
