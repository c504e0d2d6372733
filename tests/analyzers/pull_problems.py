"""Steps that pull parameters: the papers' figures, random ones, and the best that any order can do with them."""

from hypothesis import strategies as st

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem


def figure_1a(op1_s=1.0, op2_s=1.0, recv1_s=1.0, recv2_s=1.0):
    """op1 needs recv1; op2 needs op1 and recv2. By the text recv1 has to be first."""
    ops = ComputeOp("op1", op1_s, ("recv1",)), ComputeOp("op2", op2_s, ("op1", "recv2"))
    return PullProblem(ops, (Pull("recv1", recv1_s), Pull("recv2", recv2_s)))


def figure_4a(a_s, op1_s, b_s, op2_s):
    """op1 needs A, op2 needs B, op3 both ops."""
    ops = ComputeOp("op1", op1_s, ("A",)), ComputeOp("op2", op2_s, ("B",)), ComputeOp("op3", 1.0, ("op1", "op2"))
    return PullProblem(ops, (Pull("A", a_s), Pull("B", b_s)))


def figure_4b():
    """op1 needs A and B, op2 then C, op3 then D."""
    ops = (
        ComputeOp("op1", 1.0, ("A", "B")),
        ComputeOp("op2", 1.0, ("op1", "C")),
        ComputeOp("op3", 1.0, ("op2", "D")),
    )
    return PullProblem(ops, (Pull("D", 1.0), Pull("C", 2.0), Pull("B", 4.0), Pull("A", 8.0)))


def no_minimum():
    """A step whose first comparisons run in a circle.

    M and P are A (2, 5), B (3, 5), J (1, 1), W (30, 0), Y (10, 0), Z (20, 0); M+ is 13 for B (with Y), 21 for J (with
    Z), 32 for A (with W). By equation 6 A comes before B: min(5, 2) < min(5, 3); and J ties with both: min(5, 1) ==
    min(1, 2) == min(1, 3). So by M+ B before J, J before A.
    """
    ops = (
        ComputeOp("a", 5.0, ("A",)),
        ComputeOp("b", 5.0, ("B",)),
        ComputeOp("j", 1.0, ("J",)),
        ComputeOp("aw", 1.0, ("A", "W")),
        ComputeOp("by", 1.0, ("B", "Y")),
        ComputeOp("jz", 1.0, ("J", "Z")),
    )
    times_s = {"A": 2.0, "B": 3.0, "J": 1.0, "W": 30.0, "Y": 10.0, "Z": 20.0}
    return PullProblem(ops, tuple(Pull(name, time_s) for name, time_s in times_s.items()))


@st.composite
def steps(draw, most_pulls=6, channels=1):
    """Any small step; times are whole seconds, so that sums are exact."""
    times_s = st.integers(0, 6).map(float)
    names = draw(st.permutations([f"p{n}" for n in range(draw(st.integers(0, most_pulls)))]))
    pulls = tuple(Pull(name, draw(times_s), draw(st.integers(0, channels - 1))) for name in names)
    ops, before = [], sorted(names)
    for number in range(draw(st.integers(0, 8))):
        inputs = draw(st.lists(st.sampled_from(before), max_size=3)) if before else []
        ops.append(ComputeOp(f"o{number}", draw(times_s), tuple(inputs)))
        before.append(ops[-1].name)
    return PullProblem(tuple(ops), pulls)


def random_step(rng, kind, channels=1):
    """A step of 2 to 8 pulls and up to three times as many ops.

    Args:
        rng: random numbers.
        kind: how ops depend: ``"layers"`` are a network, each pull for the op of its own layer; ``"sparse"`` and
            ``"dense"`` graphs have inputs by chance, few or many; in ``"pairs"`` each op needs one or two pulls, in
            ``"sets"`` any number of them, and no other op.
        channels: number of channels.
    """
    count = int(rng.integers(2, 9))
    most_s = int(rng.choice([5, 20]))
    names = [f"p{number}" for number in rng.permutation(count)]
    pulls = tuple(Pull(name, float(rng.integers(1, most_s + 1)), int(rng.integers(channels))) for name in names)
    op_count = int(rng.integers(count, 3 * count + 1))
    ops = []
    for number in range(op_count):
        inputs = _inputs(rng, kind, [op.name for op in ops], names, number / op_count)
        ops.append(ComputeOp(f"o{number}", float(rng.integers(1, most_s + 1)), tuple(inputs)))
    return PullProblem(tuple(ops), pulls)


KINDS = ("layers", "sparse", "dense", "pairs", "sets")


def _inputs(rng, kind, ops, pulls, place):
    """Inputs of the next op, which is at that place of the step, between 0 and 1."""
    if kind == "layers":
        near = ops[-3:]
        taken = [near[rng.integers(len(near))] for _ in range(1 + int(rng.random() < 0.3))] if near else []
        own = [name for n, name in enumerate(pulls) if n / len(pulls) <= place < (n + 1) / len(pulls)]
        return [*taken, *(name for name in own if not ops or rng.random() < 0.7)]
    if kind in ("pairs", "sets"):
        most = 2 if kind == "pairs" else len(pulls)
        return list(rng.permutation(pulls)[: rng.integers(1, most + 1)])
    of_ops = 0.3 if kind == "dense" else 1.5 / max(len(ops), 1)
    of_pulls = (1.5 if kind == "dense" else 1.0) / len(pulls)
    return [name for name in ops if rng.random() < of_ops] + [name for name in pulls if rng.random() < of_pulls]


def dependencies(problem):
    """The pulls that each op waits for, directly or not; a pull waits for itself."""
    found = {pull.name: {pull.name} for pull in problem.pulls}
    for op in problem.ops:
        found[op.name] = set().union(*(found[name] for name in op.inputs))
    return found


def least_makespan_s(problem):
    """The shortest step with any order of all pulls, which share one channel.

    Over all subsets of pulls that can be received first: what is left to compute when the last of them is sent begins
    at its arrival at the earliest.
    """
    needed = dependencies(problem)
    pulls = [pull.name for pull in problem.pulls]
    bits = {name: 1 << n for n, name in enumerate(pulls)}
    works = [(sum(bits[name] for name in needed[op.name]), op.time_s) for op in problem.ops]
    left_s = [sum(time_s for bit, time_s in works if bit & ~have) for have in range(1 << len(pulls))]
    sent_s = [sum(p.time_s for p in problem.pulls if bits[p.name] & have) for have in range(1 << len(pulls))]
    least_s = [sum(time_s for _, time_s in works)]
    for have in range(1, 1 << len(pulls)):
        before = [have & ~bit for bit in bits.values() if have & bit]
        least_s.append(min(max(least_s[of], sent_s[have] + left_s[of]) for of in before))
    return least_s[-1]


def network_step(rng, layers, ops_of_layer, channels=1):
    """A training step of a network: a kernel and a bias in each layer, the kernel read again backwards."""
    ops, pulls, outputs, inputs = [], [], [], ()

    def op(name, *inputs):
        ops.append(ComputeOp(name, float(rng.lognormal()) * 1e-4, tuple(dict.fromkeys(inputs))))
        return name

    for layer in range(layers):
        pulls.append(Pull(f"kernel{layer:03}", float(rng.lognormal(0, 1.5)) * 1e-3, int(rng.integers(channels))))
        pulls.append(Pull(f"bias{layer:03}", 1e-5, int(rng.integers(channels))))
        skipped = outputs[-3:-2] if layer % 3 == 2 else []
        last = op(f"forward{layer}_0", *inputs, *skipped, pulls[-2].name)
        last = op(f"forward{layer}_1", last, pulls[-1].name)
        for number in range(2, ops_of_layer):
            last = op(f"forward{layer}_{number}", last)
        outputs.append(last)
        inputs = (last,)
    for layer in reversed(range(layers)):
        for number in range(2 * ops_of_layer):
            last = op(f"backward{layer}_{number}", last, outputs[layer], f"kernel{layer:03}")
    return PullProblem(tuple(ops), tuple(pulls))
