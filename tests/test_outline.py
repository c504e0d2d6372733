"""What is said of a program that is another one than a plan was made for."""

from caramel.outline import Outline, differences


def outline(names, ops=3):
    return Outline({"x": "float32 [?, 8]"}, dict.fromkeys(names, "parameter, float32 [8]"), {"MatMul": ops}, "mean")


def test_another_model_is_called_so():
    then, now = outline(f"a/{n}" for n in range(10)), outline((*(f"b/{n}" for n in range(7)), "a/3"), ops=9)
    assert differences(then, now) == (
        "it is another model: it has 8 variables, that one had 10; new are 'b/0', 'b/1', 'b/2' and 4 more; "
        "gone are 'a/0', 'a/1', 'a/2' and 6 more"
    )


def test_of_the_same_model_each_difference_is_said():
    then, now = outline(["a", "b", "c"]), outline(["a", "b", "d", "e"], ops=4)
    assert differences(then, now) == (
        "new variables: 'd' (parameter, float32 [8]), 'e' (parameter, float32 [8]); variables that are gone: "
        "'c' (parameter, float32 [8]); ops of type MatMul: 4, were 3"
    )
