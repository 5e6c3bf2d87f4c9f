"""Files of JSON lines, also those whose last line a crash has truncated."""

import math

from tasks.storage.jsonl import LineFile, append_line, read_lines


def test_lines_are_appended_and_read(tmp_path):
    file = tmp_path / "lines"
    assert list(read_lines(file)) == []
    assert append_line(file, {"step": 1, "at": (1, 2), "loss": math.nan}) == {"step": 1, "at": [1, 2], "loss": None}
    append_line(file, {"step": 2})
    assert list(read_lines(file)) == [{"step": 1, "at": [1, 2], "loss": None}, {"step": 2}]
    assert file.read_text().count("\n") == 2


def test_a_truncated_line_is_skipped_and_ended(tmp_path):
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"step": 2, "lo')
    assert list(read_lines(file)) == [{"step": 1}]
    append_line(file, {"step": 2})
    append_line(file, {"step": 3})
    assert file.read_text() == '{"step": 1}\n{"step": 2, "lo\n{"step": 2}\n{"step": 3}\n'
    assert [line["step"] for line in read_lines(file)] == [1, 2, 3]


def test_a_line_file_keeps_lines_of_its_own_file(tmp_path):
    file = tmp_path / "lines"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step"')
    growing = LineFile(file, (line for line in read_lines(file) if line["step"] <= 1))
    growing.write({"step": 2, "loss": math.inf})
    assert list(read_lines(file)) == [{"step": 1}, {"step": 2, "loss": None}]
    growing.close()
