from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.vllm.languages import is_in_language
from workers.vllm.sanity import ADVICE, Suspect, judge_answer

GOOD = sorted((Path(__file__).parent / "good").glob("*.txt"))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_an_ordinary_answer_is_sane(path):
    judgement = judge_answer(path.read_text(), finish_reason="stop", language=path.stem.partition("-")[0])
    assert judgement.ok, judgement.findings


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_every_prefix_of_an_ordinary_answer_is_sane_but_for_the_limit(path):
    text = path.read_text()
    for end in range(1, len(text) + 1, 7):
        if text[:end].strip():
            assert judge_answer(text[:end], finish_reason="length").codes == ("not_stopped",), text[:end]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("<think>The user asks for a capital.</think>\n\n", "empty"),
        ("<think>The user asks for", "empty"),
        ("!!!!!!", "repeated_token"),
        ("!" * 500, "repeated_token"),
        ("! ! ! ! ! !", "repeated_token"),
        (" the the the", "repeated_token"),
        ("the the the the the the the the", "repeated_token"),
        ("The capital is" + " is" * 40, "repeated_token"),
        ("\u7684" * 30, "repeated_token"),
        ("0 " * 200, "repeated_token"),
        ("I think aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "repeated_token"),
        ("I am a model. " * 12, "repeated_phrase"),
        ("Sure! Here it is:\n" + "and then we go to the next one, " * 9, "repeated_phrase"),
        ("Sure, the answer to your question follows at once. " + "\u6211\u4eec\u53ef\u4ee5" * 20, "repeated_phrase"),
        (
            "".join(f"It is number {n % 3} of the list, as I said before, is it not?\n" for n in range(40)),
            "repeated_phrase",
        ),
        ("The capital \ufffd\ufffd of France", "replacement_characters"),
        ("caf\u00c3\u00a9 au lait", "mojibake"),
        ("It\u00e2\u20ac\u2122s fine", "mojibake"),
        ("\u4f60\u597d\uff0c\u4e16\u754c".encode().decode("latin-1"), "mojibake"),
        ("\u0441\u0442\u043e\u043b\u0438\u0446\u0430".encode().decode("cp1252", "ignore"), "mojibake"),
        ("The\u0120capital\u0120of\u0120France", "undecoded_tokens"),
        ("\u2581The\u2581capital\u2581of", "undecoded_tokens"),
        ("caf<0xC3><0xA9>", "undecoded_tokens"),
        ("abc\x00\x01\x02\x03def", "unprintable"),
        ("\ue000\ue001 \ue002 text", "unprintable"),
        ("nik\u0430\u0431\u0432der \u0e01\u0e02gra \u05d0\u05d1\u05d2tion", "garbled"),
        ("Paris.<|im_end|>", "special_tokens"),
        ("Paris.</s>", "special_tokens"),
        ("Paris.\nassistant\nThe capital of France is Paris.", "special_tokens"),
    ],
)
def test_a_broken_answer_is_found(text, code):
    assert code in judge_answer(text).codes


def test_one_token_over_and_over_is_found_in_the_tokens_themselves():
    assert judge_answer("a b c d", tokens=[" x", " x", "x", " x"]).codes == ("repeated_token",)
    assert judge_answer("Paris is it.", tokens=["Paris", " is", " it", "."]).ok


@pytest.mark.parametrize(
    ("finish_reason", "code"),
    [
        ("length", "not_stopped"),
        ("abort", "engine_error"),
        ("error", "engine_error"),
        ("repetition", "repeated_phrase"),
    ],
)
def test_how_the_answer_ended_counts(finish_reason, code):
    assert judge_answer("Paris is the capital", finish_reason=finish_reason).codes == (code,)


@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", None])
def test_an_answer_that_stopped_by_itself_is_fine(finish_reason):
    assert judge_answer("Paris is the capital.", finish_reason=finish_reason).ok


def test_a_character_that_the_limit_cut_in_two_is_no_damage():
    assert judge_answer("The answer is \ufffd", finish_reason="length").codes == ("not_stopped",)
    assert judge_answer("The answer is \ufffd", finish_reason="stop").codes == ("replacement_characters",)


@pytest.mark.parametrize(
    ("text", "expected", "fine"),
    [
        ("The capital of France is Paris.", "paris", True),
        ("The capital of France is **Paris**.", "Paris", True),
        ("2 + 2 = 4", "4", True),
        ("It is 42.", "4", False),
        ("It is 4\u00b0", "4", True),
        ("\u6cd5\u56fd\u7684\u9996\u90fd\u662f\u5df4\u9ece\u3002", "\u5df4\u9ece", True),
        ("\uff30\uff41\uff52\uff49\uff53", "Paris", True),
        ("<think>Paris? No.</think>The capital is Lyon.", "Paris", False),
        ("Lyon.", "Paris", False),
        ("Lyon.", "  ", True),
    ],
)
def test_the_expected_answer_is_looked_for(text, expected, fine):
    assert judge_answer(text, expected=expected).codes == (() if fine else ("unexpected_answer",))


ALL = {path.stem: path.read_text() for path in GOOD}


@pytest.mark.parametrize(
    ("text", "language", "verdict"),
    [
        (ALL["en-prose"], "zh", False),
        (ALL["zh-prose"], "en", False),
        (ALL["zh-prose"], "zh-Hans", True),
        (ALL["zh-code"], "zh_CN", True),
        (ALL["ja-prose"], "zh", False),
        (ALL["zh-prose"], "ja", False),
        (ALL["fr-prose"], "en", False),
        (ALL["de-prose"], "fr", False),
        (ALL["en-prose"], "de", False),
        (ALL["ko-prose"], "ja", False),
        ("Paris.", "fr", True),
        ("42", "zh", None),
        (ALL["en-prose"], "tlh", None),
    ],
)
def test_the_language_is_told_apart_where_it_can_be(text, language, verdict):
    assert is_in_language(text, language) is verdict
    assert ("wrong_language" in judge_answer(text, language=language).codes) is (verdict is False)


def test_every_finding_says_where_to_look_and_what_to_do_next():
    for suspects, next_check in ADVICE.values():
        assert suspects
        assert set(suspects) <= set(Suspect)
        assert len(next_check) > 40
    finding = judge_answer("!!!!!!").findings[0]
    assert finding.points_at[0] is Suspect.WEIGHTS
    assert "transformers" in finding.next_check
    assert "'!'" in finding.message


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300), st.sampled_from(["stop", "length", None]))
def test_no_text_is_too_strange_to_judge(text, finish_reason):
    codes = judge_answer(text, finish_reason=finish_reason, expected="x", language="en").codes
    assert set(codes) <= set(ADVICE)
    assert ("empty" in codes) == (not judge_answer(text).ok and judge_answer(text).codes == ("empty",))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="\u00e9\u00e8\u00fc\u00f1\u00df\u00f8\u4f60\u597d\u5417", min_size=2, max_size=20))
def test_utf8_read_as_latin_1_is_always_found(text):
    assert "mojibake" in judge_answer("It says: " + text.encode().decode("latin-1")).codes
    assert "mojibake" not in judge_answer("It says: " + text).codes


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcdefgh ", min_size=3, max_size=60).filter(lambda text: text.strip()))
def test_any_phrase_over_and_over_is_found(phrase):
    codes = judge_answer("Well, " + (phrase.strip() + " ") * 60).codes
    assert {"repeated_token", "repeated_phrase"} & set(codes)
