"""Texts in many scripts, drawn by a seed: what tokenizers are compared on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

ALPHABETS: Final = {
    "latin": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZßäöüéèñçøåłşğžőǅ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЕЖЗІЇЄҐЎўј",
    "greek": "αβγδεζηθικλμνξοπρσςτυφχψωΑΒΓΔΩάέήίόύώϊϋΐ",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأؤإئىةپچژگ",
    "hebrew": "אבגדהוזחטיכךלמםנןסעפףצץקרשת",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौंः्",
    "thai": "กขคงจฉชซฌญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศษสหอฮะาิีึืุูเแโใไ่้๊๋",
    "chinese": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "japanese": "あいうえおかきくけこさしすせそたちつてとなにぬねのアイウエオカキクケコー日本語漢字",
    "korean": "가나다라마바사아자차카타파하한국어말글은는이를에서입니다ㄱㄴㄷㅏㅑ",
    "other": "აბგდԱԲԳአበገកខគမြန်မာሀለ🄰ꙮⅷ½²٣४๓〇㊀Ⅻ",
}
EMOJI: Final = ("😀", "👩\u200d🚀", "👨\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "🫠")
MARKS: Final = ("\u0301", "\u0308", "\u0323", "\u0327", "\u20dd", "\u093c", "\u0e49", "\u3099", "\ufe0f")
COMPOSED: Final = (
    "é",
    "e\u0301",
    "ﬁ",
    "Å",
    "\u212b",
    "각",
    "\u1100\u1161\u11a8",
    "ü",
    "u\u0308",
    "ǖ",
    "½",
    "①",
)
BLANKS: Final = (
    " ",
    "  ",
    "   ",
    " " * 7,
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n",
    "\n  ",
    "\u00a0",
    "\u2003",
)
SIGNS: Final = (
    *("...", "!?", "'s", "'LL", "'t", "’s", "--", "=>", "::", "({[", "]})", "\\n", "//", "/*", "*/", "#!"),
    *(
        "$",
        "€",
        "+=",
        "<=",
        "^~|",
        "`",
        "。",
        "、",
        "「",
        "」",
        "¿",
        "«",
        "»",
        "…",
        "_",
        "__",
        "@",
        "&&",
        "%",
    ),
)
CODE: Final = (
    "def f(x: int) -> int:\n    return x**2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += 0x1F;\n}\n",
    "SELECT * FROM t WHERE a='b';\r\n",
    '{"key": [1, 2.5e-3, null], "ключ": "值"}',
    "https://example.org/a_b?c=d&e=%20#f",
    "camelCaseHTTPServer snake_case_99 CONSTANT",
)


def draw_texts(count: int, seed: int, control: Sequence[str] = ()) -> Iterator[str]:
    """Texts of one to some dozens of words. control: tokens that stand in some of them."""
    random_ = random.Random(seed)
    for _ in range(count):
        yield "".join(_piece(random_, control) for _ in range(random_.randint(1, 24)))


def _piece(random_: random.Random, control: Sequence[str]) -> str:
    kind = random_.random()
    if kind < 0.45:
        return _word(random_) + random_.choice((" ", " ", "", *BLANKS))
    if kind < 0.60:
        return random_.choice(BLANKS)
    if kind < 0.72:
        return random_.choice(SIGNS)
    if kind < 0.80:
        return str(random_.randrange(10 ** random_.randint(1, 9)))
    if kind < 0.86:
        return random_.choice(EMOJI) + random_.choice(("", " ", *MARKS))
    if kind < 0.91:
        return random_.choice(COMPOSED)
    if kind < 0.95:
        return random_.choice(CODE)
    if kind < 0.98 and control:
        return random_.choice(control)
    return chr(random_.choice((random_.randrange(0x20, 0xD800), random_.randrange(0xE000, 0x20000))))


def _word(random_: random.Random) -> str:
    alphabet = random_.choice([*ALPHABETS.values(), ALPHABETS["latin"], COMMON])
    letters = [random_.choice(alphabet) for _ in range(random_.randint(1, 9))]
    if alphabet is COMMON:
        return random_.choice(COMMON)
    if random_.random() < 0.1:
        letters.insert(random_.randrange(len(letters) + 1), random_.choice(MARKS))
    return "".join(letters)


COMMON: Final = (
    *(
        "the",
        "The",
        "and",
        "of",
        "Hello",
        "world",
        "it's",
        "I'll",
        "WE'RE",
        "don't",
        "tokens",
        "international",
    ),
    *(
        "Привет",
        "мир",
        "не",
        "Ελλάδα",
        "שלום",
        "مرحبا",
        "नमस्ते",
        "สวัสดี",
        "你好",
        "こんにちは",
        "안녕하세요",
        "naïve",
    ),
)
