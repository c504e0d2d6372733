"""Errors of the user's code name the user's line."""

from pathlib import Path

import caramel
from caramel.frontend.user_code import program_error


def test_a_folder_whose_name_begins_like_that_of_the_package_is_the_users():
    file = f"{Path(caramel.__file__).parent}_experiments/train.py"
    try:
        exec(compile("\n{}['key']", file, "exec"))
    except KeyError as error:
        assert f" at {file}:2: " in str(program_error("it", error))
