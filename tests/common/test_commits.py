"""A hook that fails after a commit is logged; the request that committed still answers."""

import pytest
from django.db import transaction

from console.common.commits import after_commit

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_failing_hook_stops_neither_the_caller_nor_the_next_hook(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail(word: str) -> None:
        raise RuntimeError(word)

    with transaction.atomic():
        after_commit(fail, "broker away")
        after_commit(done.append, "second")
        assert done == []
    assert done == ["second"]
    assert "broker away" in caplog.text


def test_nothing_is_called_when_the_transaction_fails() -> None:
    done: list[str] = []

    @transaction.atomic
    def fail() -> None:
        after_commit(done.append, "never")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert done == []
