"""When a CPU's copies happen: fenced ones at once, those beside the forward when they are due or waited for."""

from kvplan.backends.streams import CpuStream


def test_fenced_work_is_done_at_once() -> None:
    done: list[str] = []
    assert CpuStream(delay=3).fenced(lambda: done.append("copy")).done()
    assert done == ["copy"]


def test_work_beside_the_forward_is_done_at_the_end_of_its_round() -> None:
    done: list[str] = []
    stream = CpuStream(delay=0)
    ticket = stream.beside(lambda: done.append("copy"))
    assert not ticket.done()
    stream.end_of_round()
    assert ticket.done()
    assert done == ["copy"]


def test_delayed_work_is_done_so_many_rounds_later() -> None:
    stream = CpuStream(delay=2)
    ticket = stream.beside(lambda: None)
    after = []
    for _ in range(3):
        stream.end_of_round()
        after.append(ticket.done())
    assert after == [False, False, True]


def test_work_that_is_waited_for_is_done_once() -> None:
    done: list[str] = []
    stream = CpuStream(delay=None)
    ticket = stream.beside(lambda: done.append("copy"))
    stream.end_of_round()
    assert not done
    ticket.wait()
    ticket.wait()
    stream.end_of_round()
    assert done == ["copy"]
