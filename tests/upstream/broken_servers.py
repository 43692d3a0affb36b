"""What broken servers wrote, the line that says why, and what a person would advise.

Shortened to the lines that matter, with their paths and versions made neutral.
"""

OLD_SDK = (
    "it was written for another release of the MCP SDK; if that is an older one, "
    "try `uvx --with 'mcp<2' …`"
)
INCOMPLETE = (
    "a part of its package is missing: install it again; `npx` keeps its copies in `~/.npm/_npx`"
)
BROKEN = {
    "a decorator of the older SDK": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 3, in <module>
    @server.list_resources()
     ^^^^^^^^^^^^^^^^^^^^^
AttributeError: 'Server' object has no attribute 'list_resources'
""",
        "AttributeError: 'Server' object has no attribute 'list_resources'",
        OLD_SDK,
    ),
    "FastMCP of the older SDK": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 1, in <module>
    from mcp.server import FastMCP
ImportError: cannot import name 'FastMCP' from 'mcp.server' (/opt/mcp/server/__init__.py)
""",
        "ImportError: cannot import name 'FastMCP' from 'mcp.server' (/opt/mcp/server/__init__.py)",
        OLD_SDK,
    ),
    "an error of the older SDK": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 1, in <module>
    from mcp import McpError
ImportError: cannot import name 'McpError' from 'mcp' (/opt/mcp/__init__.py)
""",
        "ImportError: cannot import name 'McpError' from 'mcp' (/opt/mcp/__init__.py)",
        OLD_SDK,
    ),
    "a file missing in a package": (
        """\
node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module './lib/missing'
Require stack:
- /root/.npm/_npx/3f69/node_modules/pkg/dist/index.js
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
  code: 'MODULE_NOT_FOUND',
  requireStack: [ '/root/.npm/_npx/3f69/node_modules/pkg/dist/index.js' ]
}

Node.js v20.20.2
""",
        "Error: Cannot find module './lib/missing'",
        INCOMPLETE,
    ),
    "a package missing for a package": (
        """\
node:internal/modules/esm/resolve:873
  throw new ERR_MODULE_NOT_FOUND(packageName, fileURLToPath(base), null);
        ^

Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /opt/node_modules/pkg/i.mjs
    at packageResolve (node:internal/modules/esm/resolve:873:9)
  code: 'ERR_MODULE_NOT_FOUND'
}

Node.js v20.20.2
""",
        (
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from "
            "/opt/node_modules/pkg/i.mjs"
        ),
        INCOMPLETE,
    ),
    "a file that was never built": (
        """\
Error [ERR_MODULE_NOT_FOUND]: Cannot find module '/srv/gone.js' imported from /srv/server.mjs
    at finalizeResolution (node:internal/modules/esm/resolve:283:11)
  code: 'ERR_MODULE_NOT_FOUND',
  url: 'file:///srv/gone.js'
}
""",
        (
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find module '/srv/gone.js' imported from "
            "/srv/server.mjs"
        ),
        "its own code imports `/srv/gone.js`, which does not exist: build or install it again",
    ),
    "a database that does not run": (
        """\
Redis Client Error Error: connect ECONNREFUSED 127.0.0.1:6379
    at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {
  errno: -111,
  code: 'ECONNREFUSED',
  syscall: 'connect',
  address: '127.0.0.1',
  port: 6379
}
Failed to start the server
Error: Connection timeout
""",
        "Redis Client Error Error: connect ECONNREFUSED 127.0.0.1:6379",
        (
            "nothing listens at 127.0.0.1:6379: start that service, or correct the address in "
            "`env` or `args`"
        ),
    ),
    "an unknown host": (
        """\
Failed to connect
/opt/server.js:1

Error: getaddrinfo ENOTFOUND db.invalid
    at GetAddrInfoReqWrap.onlookup [as oncomplete] (node:dns:111:26) {
  errno: -3008,
  code: 'ENOTFOUND',
  syscall: 'getaddrinfo',
  hostname: 'db.invalid'
}

Node.js v20.20.2
""",
        "Error: getaddrinfo ENOTFOUND db.invalid",
        (
            "the host `db.invalid` cannot be found: check the network, or the name in its "
            "configuration"
        ),
    ),
    "npm without a network": (
        """\
npm error code ENOTFOUND
npm error syscall getaddrinfo
npm error errno ENOTFOUND
npm error network request to http://no.invalid/pkg failed, reason: getaddrinfo ENOTFOUND no.invalid
npm error network This is a problem related to network connectivity.
npm error network In most cases you are behind a proxy or have bad network settings.
""",
        (
            "npm error network request to http://no.invalid/pkg failed, reason: getaddrinfo "
            "ENOTFOUND no.invalid"
        ),
        "the npm registry cannot be reached: check network and proxy",
    ),
    "uv without a network": (
        """\
error: Request failed after 3 retries in 9.2s
  cause: Failed to fetch: http://uv.invalid/simple/pkg/
  cause: error sending request for url (http://uv.invalid/simple/pkg/)
  cause: client error (Connect)
  cause: dns error
  cause: error resolving DNS
  cause: failed to lookup address information: Name or service not known
""",
        "Failed to fetch: http://uv.invalid/simple/pkg/",
        "what it downloads cannot be reached: check network and proxy",
    ),
    "uv that may not use the network": (
        """\
error: No solution found when resolving tool dependencies
  cause: Because pkg was not found in the cache and you require pkg, we can conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because the network was disabled.
""",  # noqa: E501 - as uv writes it
        (
            "Because pkg was not found in the cache and you require pkg, we can conclude that your "
            "requirements are unsatisfiable."
        ),
        "uv is offline, and has not downloaded it before: run it once with a network",
    ),
    "a package that its authors gave up": (
        """\
(node:41) [DEP0040] DeprecationWarning: The `punycode` module is deprecated.
(Use `node --trace-deprecation ...` to show where the warning was created)
This package is deprecated.
Visit the documentation for the remote server.
""",
        "This package is deprecated.",
        None,
    ),
    "a warning that says nothing": (
        """\
(node:41) [DEP0040] DeprecationWarning: The `punycode` module is deprecated.
Error: the token is missing
""",
        "Error: the token is missing",
        None,
    ),
}
