"""The records of calls that outlive their requests."""

from multitap.hub.task_runs import new_record


def test_no_id_looks_like_an_option_of_a_command():
    ids = {new_record("zoo", "sleep", "zoo_sleep").id for _ in range(2000)}

    assert len(ids) == 2000
    assert not any(task_id.startswith("-") for task_id in ids)
