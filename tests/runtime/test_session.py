"""A session that trains on many batches."""


def test_training_is_quiet_where_there_is_no_terminal(compiled, batch, capfd):
    with compiled().session() as session:
        capfd.readouterr()
        seen = []
        results = session.run([batch] * 3, on_step=seen.append)
    assert capfd.readouterr() == ("", "")
    assert [r.step for r in results] == [1, 2, 3]
    assert seen == results
