"""Python files that are loaded as modules: of one that fails nothing is left, and no other module loses its name."""

import random
import sys

import pytest

from caramel.util.python_files import executed_module


def test_a_module_finds_itself(tmp_path):
    file = tmp_path / "a_program_of_this_test.py"
    file.write_text("import dataclasses\n\n@dataclasses.dataclass\nclass A:\n    b: int = 1\n")
    module = executed_module(file, file.stem)
    assert module.A().b == 1 and sys.modules[file.stem] is module
    again = executed_module(file, file.stem)
    assert again is not module and sys.modules.pop(file.stem) is again


def test_nothing_is_left_of_one_that_fails(tmp_path):
    file = tmp_path / "a_program_that_fails.py"
    file.write_text("x = 1\nraise ValueError('no')\n")
    with pytest.raises(ValueError, match="no"):
        executed_module(file, file.stem)
    assert file.stem not in sys.modules
    file.write_text("x = 1\n")
    good = executed_module(file, file.stem)
    file.write_text("raise ValueError('no')  # longer than before\n")
    with pytest.raises(ValueError, match="no"):
        executed_module(file, file.stem)
    assert sys.modules.pop(file.stem) is good


def test_a_module_of_another_file_keeps_its_name(tmp_path):
    file = tmp_path / "random.py"
    file.write_text("x = 1\n")
    module = executed_module(file, file.stem)
    assert module.x == 1 and sys.modules["random"] is random
    assert sys.modules.pop(module.__name__) is module


def test_what_is_no_python_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("x = 1\n")
    assert executed_module(file, file.stem) is None
