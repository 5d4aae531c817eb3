"""What people write down to try, and what it makes of the base's arguments."""

import pytest

from console.common.errors import Refused
from console.studies import variants
from console.studies.ready import READY
from workers.vllm.arguments import schema_for, values_from_argv

SCHEMA = schema_for("0.32.0")


def labels(text: str, *, grid: bool = False) -> list[str]:
    return [one.label for one in variants.read(text, grid=grid)]


def test_values_apart_by_bars_are_one_variant_each() -> None:
    assert labels("--max-num-seqs 64 | 128\n--enable-prefix-caching | --no-enable-prefix-caching") == [
        "--max-num-seqs 64", "--max-num-seqs 128", "--enable-prefix-caching", "--no-enable-prefix-caching",
    ]  # fmt: skip


def test_a_grid_is_every_combination_of_the_lines() -> None:
    found = variants.read("--max-num-seqs 64 | 128\n--block-size 16 | 32", grid=True)
    assert len(found) == 4
    assert found[-1].words == ("--max-num-seqs", "128", "--block-size", "32")


def test_several_arguments_together_are_one_variant() -> None:
    assert labels("--max-num-seqs 128 --max-num-batched-tokens 4096") == [
        "--max-num-seqs 128 --max-num-batched-tokens 4096"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "at least one"), ("64 | 128", "begins with no argument"), ("--x 'open", "Line 1"),
     ("--max-num-seqs " + " | ".join(map(str, range(40))), "40 engines")],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_what_to_do(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        variants.read(text, grid=False)


@pytest.mark.parametrize(
    ("base", "words", "expected"),
    [
        (
            ["--max-num-seqs", "16", "--enforce-eager"],
            ["--max-num-seqs", "64"],
            ["--enforce-eager", "--max-num-seqs", "64"],
        ),
        (["--max_num_seqs=16"], ["--max-num-seqs", "64"], ["--max-num-seqs", "64"]),
        (["--enforce-eager"], ["--no-enforce-eager"], ["--no-enforce-eager"]),
        (["--enforce-eager", "--seed", "1"], ["!--enforce-eager"], ["--seed", "1"]),
        (["-tp", "2"], ["--tensor-parallel-size", "1"], ["--tensor-parallel-size", "1"]),
    ],
)
def test_a_variant_takes_the_place_of_what_the_base_says(
    base: list[str], words: list[str], expected: list[str]
) -> None:
    assert variants.applied(base, words, SCHEMA) == expected


def test_without_a_schema_spellings_and_negations_are_still_the_same_argument() -> None:
    assert variants.applied(["--enforce_eager", "--seed", "1"], ["--no-enforce-eager"], None) == [
        "--seed", "1", "--no-enforce-eager",
    ]  # fmt: skip


def test_the_order_of_arguments_makes_no_difference() -> None:
    assert variants.same(["--seed", "1", "--max-num-seqs=4"], ["--max-num-seqs", "4", "--seed", "1"], SCHEMA)
    assert not variants.same(["--seed", "1"], ["--seed", "2"], SCHEMA)


@pytest.mark.parametrize("ready", READY.values(), ids=lambda one: one.key)
def test_every_ready_study_is_understood_by_the_newest_engine_and_names_a_claim(ready: object) -> None:
    found = variants.read(ready.changes, grid=False)  # type: ignore[attr-defined]
    for one in found:
        words = [word for word in one.words if not word.startswith("!")]
        assert not words or values_from_argv(SCHEMA, words)[1], one
    assert ready.claims  # type: ignore[attr-defined]
    assert len(found) > 1
