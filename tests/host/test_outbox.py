import subprocess
import sys
from pathlib import Path

from workers.contracts import Report, StepEvent
from workers.host.outbox import Outbox


def event(text: str) -> StepEvent:
    return StepEvent(step=1, fence=1, text=text)


def test_numbers_go_on_after_everything_was_acknowledged_and_the_file_was_reopened(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite3")
    assert [outbox.add(event("a")), outbox.add(event("b"))] == [1, 2]
    outbox.delete_through(2)
    first_id = outbox.id
    outbox.close()

    again = Outbox(tmp_path / "outbox.sqlite3")
    assert again.id == first_id
    assert again.add(event("c")) == 3
    assert again.last_number() == 3


def test_a_lost_disk_starts_a_new_outbox(tmp_path: Path) -> None:
    assert Outbox(tmp_path / "one.sqlite3").id != Outbox(tmp_path / "two.sqlite3").id


def test_what_is_sent_is_a_report_with_the_same_body(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite3")
    outbox.add(event('with "quotes", 中文 and \x00'))
    ((number, text),) = outbox.after(0, 10)
    report = Report.model_validate_json(text)
    assert (report.number, report.outbox) == (number, outbox.id)
    assert report.body == event('with "quotes", 中文 and \x00')


def test_many_processes_write_at_once_and_every_report_gets_a_number_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite3"
    program = (
        "import sys; from pathlib import Path; from workers.host.outbox import Outbox; "
        "from workers.contracts import StepEvent; box = Outbox(Path(sys.argv[1])); "
        "[box.add(StepEvent(step=int(sys.argv[2]), fence=1, text=str(n))) for n in range(40)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(number)]) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    reports = [Report.model_validate_json(text) for _number, text in Outbox(path).after(0, 1000)]
    assert [report.number for report in reports] == list(range(1, 121))
    for step in range(3):
        texts = [report.body.text for report in reports if report.body.step == step]
        assert texts == [str(number) for number in range(40)]
