"""What the suite may complain about, and why; an entry that it does not complain about fails."""

CLIENT = {}
"""By scenario, in every version that has it."""

GATEWAY = {}
"""The same for our gateway, in one version."""

BARE_LIST = {
    "tasks-required-task-error": "a tool that only runs as a task works for every client: for one "
    "that takes no tasks, the gateway waits, where the suite wants the call refused",
}
"""The same for our gateway and all scenarios, with servers for tasks and skills behind it."""
