"""The variables of Slurm: lists in brackets, tasks on nodes, ports."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.errors import InputError
from caramel.runtime.host.slurm import expanded_nodes, expanded_tasks, from_slurm


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("node1", ["node1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("gpu-[08-11]", ["gpu-08", "gpu-09", "gpu-10", "gpu-11"]),
        ("a[098-101]", ["a098", "a099", "a100", "a101"]),
        ("r[1-2]n[3,5].site", ["r1n3.site", "r1n5.site", "r2n3.site", "r2n5.site"]),
        ("[1-2]x", ["1x", "2x"]),
        ("b2,b1,a", ["b2", "b1", "a"]),
    ],
)
def test_lists_of_nodes(text, hosts):
    assert expanded_nodes(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a,", "n[1-", "n1-3]", "n[]", "n[2-1]", "n[a-b]", "n[1-2-3]", "n[[1]]", "a b", "n[1-9999999]"]
)
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(InputError, match=r"is no list of Slurm's nodes, such as"):
        expanded_nodes(text)


RANGES = st.tuples(st.integers(0, 1200), st.integers(0, 12), st.integers(1, 5)).map(
    lambda r: (str(r[0]).zfill(r[2]), str(r[0] + r[1]).zfill(r[2])) if r[1] else (str(r[0]).zfill(r[2]), None)
)
TEXT = st.from_regex(r"[a-z.-]{1,6}", fullmatch=True)
NAMES = st.lists(st.one_of(TEXT, st.lists(RANGES, min_size=1, max_size=3)), min_size=1, max_size=3)


def written(name):
    pieces = (
        p if isinstance(p, str) else "[" + ",".join(a if b is None else f"{a}-{b}" for a, b in p) + "]" for p in name
    )
    return "".join(pieces)


def meant(name):
    """The hosts of a name, by counting up from the first number of each range."""
    choices = []
    for piece in name:
        if isinstance(piece, str):
            choices.append([piece])
            continue
        numbers = []
        for first, last in piece:
            while True:
                numbers.append(first)
                if last is None or int(first) == int(last):
                    break
                first = format(int(first) + 1, f"0{len(first)}")
        choices.append(numbers)
    return ["".join(parts) for parts in product(*choices)]


@given(st.lists(NAMES, min_size=1, max_size=3))
def test_every_list_that_can_be_written_is_read(names):
    assert expanded_nodes(",".join(map(written, names))) == [host for name in names for host in meant(name)]


@given(st.text(alphabet="a1[]-,", max_size=12))
def test_any_text_is_a_list_or_refused(text):
    try:
        hosts = expanded_nodes(text)
    except InputError:
        return
    assert hosts and all(hosts) and not any(mark in host for host in hosts for mark in "[],")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=4))
def test_tasks_of_nodes(runs):
    text = ",".join(f"{tasks}(x{nodes})" if nodes > 1 else str(tasks) for tasks, nodes in runs)
    assert expanded_tasks(text) == [tasks for tasks, nodes in runs for _ in range(nodes)]


@pytest.mark.parametrize("text", ["", "2(x)", "x2", "2(x3", "2,,2", "2(x99999999)"])
def test_what_says_no_tasks(text):
    with pytest.raises(InputError, match="says no numbers of tasks as Slurm does"):
        expanded_tasks(text)


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
}


def test_a_step_of_a_job_on_some_of_its_nodes():
    found = from_slurm(STEP)
    assert found.addresses == ("n1:24711", "n1:24712", "n2:24711", "n3:24711")
    assert (found.task, found.notes) == (2, ())
    assert from_slurm(STEP, base_port=2222).addresses == ("n1:2222", "n1:2223", "n2:2222", "n3:2222")


def test_tasks_that_are_dealt_out_in_turn():
    """As srun --distribution=cyclic has put them on nodes that take two, one and one."""
    nodes = (0, 1, 2, 0)
    for task, node in enumerate(nodes):
        own = {"SLURM_DISTRIBUTION": "cyclic", "SLURM_PROCID": str(task), "SLURM_NODEID": str(node)}
        found = from_slurm({**STEP, **own}, base_port=1)
        assert found.addresses == ("n1:1", "n2:1", "n3:1", "n1:2")
        assert found.task == task


def test_the_jobs_variables_alone():
    found = from_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert found.addresses == ("n1:20000", "n1:20001", "n2:20000", "n2:20001")
    assert found.notes == ("Slurm: SLURM_STEP_NODELIST is not set, so srun may be missing in front of this command",)


def test_every_task_sees_the_same_cluster():
    nodes = (0, 0, 1, 2)
    found = [from_slurm({**STEP, "SLURM_PROCID": str(task), "SLURM_NODEID": str(nodes[task])}) for task in range(4)]
    assert len({each.addresses for each in found}) == 1
    assert [each.task for each in found] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"SLURM_PROCID": None}, "this is no task of Slurm, as SLURM_PROCID is not set: start the command with srun"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID of Slurm is 'x'"),
        ({"SLURM_PROCID": "4"}, "SLURM_PROCID is 4, and there are 4 tasks"),
        ({"SLURM_NODEID": "2"}, "has put task 2 on node 2 of the step, not on node 1"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "3 nodes and 5 tasks, and 2,1(x2) says"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "'n[1-' is no list"),
    ],
)
def test_variables_that_do_not_fit(change, message):
    variables = {name: value for name, value in {**STEP, **change}.items() if value is not None}
    with pytest.raises(InputError, match=re.escape(message)):
        from_slurm(variables)


def test_ports_that_do_not_exist():
    with pytest.raises(InputError, match="there are no 2 ports from 65535 on"):
        from_slurm(STEP, base_port=65535)
