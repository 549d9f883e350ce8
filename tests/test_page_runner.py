"""What runs the pages of the documentation must notice a page that says something wrong."""

from __future__ import annotations

import pytest

from harness.pages import run_page


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def run_text(text, **settings):
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        run_page(page, capsys, **settings)

    monkeypatch.chdir(tmp_path)
    return run_text


def code(line, said=None):
    return f"# Page\n\n```python\n{line}\n```\n" + ("" if said is None else f"\n```text\n{said}\n```\n")


def command(line, said=None):
    return code(line, said).replace("python", "sh", 1)


def test_right_pages_pass(run):
    run(code("print(1 + 1)  # 2"))
    run(code("print(0.512, 'and', 0.4)  # 0.511 and 0.39"))  # the last digit depends on the processor
    run(code("x = 3\nprint(x, 'rows')  # 3 rows"), trained=True)
    run(code("print('NLL 0.512\\nand more')", "NLL 0.50\nand more"), trained=True)
    run(code("print('a', 'b', 'c', 'd', sep='\\n')", "a\n...\nd"), trained=True)
    run(command("refocal explain --gamma 3 --classes 10"))
    run(command("refocal explain --gamma 3 --classes 10  # a comment\nno such command"), not_run=["no such command"])
    run(code("x = 0.512") + "\n`print(x)` shows it,\nin a block elsewhere:\n\n```text\n0.511\n```\n")


@pytest.mark.parametrize(
    ("text", "trained"),
    [
        (code("print(1 + 1)  # 3"), False),
        (code("print(0.5)  # 0.502"), False),
        (code("print(1)\nprint(2)  # 2"), True),
        (code("x = 2\nif x > 1:\n    print('more')"), True),
        (code("print('NLL 0.6')", "NLL 0.5"), True),
        (code("print('NLL 0.5')", "ECE 0.5"), True),
        (code("print('1,200 rows')", "1,500 rows"), True),
        (code("print('a', 'b', 'c', 'd', sep='\\n')", "a\n...\ne"), True),
        (code("print('a')", "a\n...\na"), True),
        (code("print('a', 'b', 'c', 'd', sep='\\n')", "b\n...\nd"), True),
        (command("refocal explain --gamma 3 --classes 10", "something else"), True),
        (command("refocal evaluate missing.npz"), True),
        (command("rm page.md"), True),
        (command("refocal evaluate missing.npz"), False),
        ("# Page\n\nIt prints:\n\n```text\n1\n```\n", False),
        (code("x = 0.512") + "\n`print(x)` shows it:\n\n```text\n0.7\n```\n", False),
    ],
)
def test_wrong_pages_fail(run, text, trained):
    with pytest.raises(pytest.fail.Exception):
        run(text, trained=trained)


def test_a_command_that_is_left_out_must_be_there(run):
    with pytest.raises(pytest.fail.Exception, match=r"not on the page: .'make test'."):
        run(code("x = 1"), not_run=["make test"])
