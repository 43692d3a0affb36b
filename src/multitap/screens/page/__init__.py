"""The page in the browser, at `/console` of a gateway over HTTP; nothing else imports it.

In: requests of browsers, admitted by `request_checks` and a cookie that `console_keys` gives for a
one-time link. Out: HTML that reads well without scripts (`plain_pages`), one stream of frames that
all open pages share (`page_feed`), answers of the control service, and calls with questions on the
way (`page_actions`). `static` has the scripts and styles, as they are served. What servers say is
text here and must not become markup, and nothing may be computed for the page while a call runs.
"""
