"""What a plan says of a gradient that is cut into pieces."""

from caramel.facts import BACKWARD, FORWARD, Piece
from caramel.plan import Plan, Transfer


def transfer(start, elements, window, reason):
    return Transfer(
        (Piece("a", start, elements),), "float32", elements, 4 * elements, "ring", 2, window, None, None, reason
    )


def plan_of(*transfers):
    return Plan("f" * 64, 2, ("", ""), "mean", "", False, False, "local", None, transfers, (("a", "parameter"),), ())


def test_pieces_that_travel_alike_are_explained_once():
    windows = [FORWARD, BACKWARD, BACKWARD, BACKWARD, FORWARD, BACKWARD]
    reasons = [f"Can start at {number}.5 ms." for number in range(5)] + ["It was asked to."]
    plan = plan_of(*(transfer(10 * n, 10, w, reason) for n, (w, reason) in enumerate(zip(windows, reasons))))
    assert plan.explain("a").splitlines() == [
        "a: elements 0:10 in transfer 0, 40 bytes of float32, ring of depth 2, forward window. Can start at 0.5 ms. So it "
        "is, with other numbers, in transfer 4.",
        "a: elements 10:20 in transfer 1, 40 bytes of float32, ring of depth 2, backward window. Can start at 1.5 ms. So it "
        "is, with other numbers, in transfers 2 to 3.",
        "a: elements 50:60 in transfer 5, 40 bytes of float32, ring of depth 2, backward window. It was asked to.",
    ]
