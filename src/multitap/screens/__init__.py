"""The user interfaces: one view model, shown in the terminal and in the browser.

In: answers of a gateway's control service. Out: rows to show, and the requests for keys and clicks.
`view` decides what is shown; `terminal` and `page` draw it. Screens keep no state of the
servers and must not reach behind the service: a gateway in the same process is asked in the same
way as one in another.
"""
