"""What a person looks at: one view model, shown in the terminal and in the browser.

In: answers of a gateway's control desk. Out: rows to show, and the questions that keys and clicks
stand for. `rows` and `time_bars` decide what is shown; `terminal` draws it. Screens hold no state
of the servers and must not reach behind the desk: what runs in the same process is asked in the
same way as what runs in another.
"""
