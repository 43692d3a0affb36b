"""The page in the browser, at `/console` of a gateway over HTTP; nothing else imports it.

In: requests of browsers, which `access` admits by a cookie that they get for a one-time link. Out:
HTML that scripts fill (`pages`), one stream of frames that all open pages share
(`page_feed`), and at each address an answer of the control service, or a call with questions on the
way (`console`). `static` has the scripts and styles, as they are served. What servers say is
text here and must not become markup, and nothing may be computed for the page while a call runs.
"""
