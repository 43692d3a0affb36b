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
OLD_NODE = "it needs a newer Node.js: update it, or put a newer one first on PATH"
OTHER_MODULE = (
    "Node.js takes it for another kind of module: `.mjs` is for `import`, `.cjs` for `require`"
)
TYPESCRIPT = "this Node.js runs no TypeScript: use `npx tsx FILE`, or build it first"
CERTIFICATE = (
    "a certificate is not trusted: name its authority in `NODE_EXTRA_CA_CERTS` or `SSL_CERT_FILE`"
)
REGISTRY_LOGIN = "the package registry wants a login: check its address, and your token for it"
NO_SERVICE = (
    "a service that it uses is not there: start it, or correct its address in `env` or `args`"
)
ARGUMENTS = "it does not know one of its arguments: check `args`"
OTHER_SYSTEM = "it was built for another system or processor: install the one for this machine"
FIRST_LINE = (
    "the interpreter in its first line does not exist: correct it; if the file was written on "
    "Windows, save it with Unix line endings"
)
TERMINAL = "it expects a terminal: it may need an argument such as `stdio`, or its settings"


def missing_file(path):
    return f"`{path}` does not exist: check the path in `args`, and `cwd`"


def not_listening(address):
    return (
        f"nothing listens at {address}: start that service, or correct the address in "
        "`env` or `args`"
    )


def variable(name):
    return f"set `{name}` in `env` of its configuration"


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
    "a module of a newer Node": (
        """\
node:internal/modules/esm/translators:391
    throw new ERR_UNKNOWN_BUILTIN_MODULE(url);
          ^

Error [ERR_UNKNOWN_BUILTIN_MODULE]: No such built-in module: node:sqlite
    at #translate (node:internal/modules/esm/loader:497:12) {
  code: 'ERR_UNKNOWN_BUILTIN_MODULE'
}

Node.js v20.20.2
""",
        "Error [ERR_UNKNOWN_BUILTIN_MODULE]: No such built-in module: node:sqlite",
        OLD_NODE,
    ),
    "a function of a newer Node": (
        """\
file:///opt/server.mjs:1
const { promise } = Promise.withResolvers();
                            ^

TypeError: Promise.withResolvers is not a function
    at file:///opt/server.mjs:1:29

Node.js v20.20.2
""",
        "TypeError: Promise.withResolvers is not a function",
        OLD_NODE,
    ),
    "an export of a newer Node": (
        """\
file:///opt/server.mjs:1
import { globSync } from 'node:fs';
         ^^^^^^^^
SyntaxError: The requested module 'node:fs' does not provide an export named 'globSync'
    at ModuleJob._instantiate (node:internal/modules/esm/module_job:213:21)

Node.js v20.20.2
""",
        "SyntaxError: The requested module 'node:fs' does not provide an export named 'globSync'",
        OLD_NODE,
    ),
    "TypeScript": (
        """\
/opt/server.ts:1
const a: number = 1;
      ^

SyntaxError: Missing initializer in const declaration
    at wrapSafe (node:internal/modules/cjs/loader:1464:18)

Node.js v20.20.2
""",
        "SyntaxError: Missing initializer in const declaration",
        TYPESCRIPT,
    ),
    "the other kind of module": (
        """\
file:///opt/server.mjs:1
const fs = require('fs');
           ^

ReferenceError: require is not defined in ES module scope, you can use import instead
    at file:///opt/server.mjs:1:12

Node.js v20.20.2
""",
        "ReferenceError: require is not defined in ES module scope, you can use import instead",
        OTHER_MODULE,
    ),
    "an unknown option of Node": (
        """\
node: bad option: --experimental-nosuch
""",
        "node: bad option: --experimental-nosuch",
        ARGUMENTS,
    ),
    "a script that is not there": (
        """\
/usr/bin/python3: can't open file '/srv/server.py': [Errno 2] No such file or directory
""",
        "/usr/bin/python3: can't open file '/srv/server.py': [Errno 2] No such file or directory",
        missing_file("/srv/server.py"),
    ),
    "a script that a shell does not find": (
        """\
bash: server.sh: No such file or directory
""",
        "bash: server.sh: No such file or directory",
        missing_file("server.sh"),
    ),
    "a script that another shell does not find": (
        """\
sh: 0: cannot open /srv/server.sh: No such file
""",
        "sh: 0: cannot open /srv/server.sh: No such file",
        missing_file("/srv/server.sh"),
    ),
    "a module that is not installed": (
        """\
/usr/bin/python3: No module named acme_server
""",
        "/usr/bin/python3: No module named acme_server",
        "install the Python package that provides `acme_server` where the server runs",
    ),
    "a package without a program": (
        """\
/usr/bin/python3: No module named acme.__main__; 'acme' is a package and cannot be directly executed
""",
        (
            "/usr/bin/python3: No module named acme.__main__; 'acme' is a package and cannot be "
            "directly executed"
        ),
        "`acme` is a package without a program of its own: check what follows `-m` in `args`",
    ),
    "a program that its own package lacks": (
        """\
Installed 1 package in 0.76ms
Traceback (most recent call last):
  File "/root/.cache/uv/archive-v0/lyEm/bin/acme", line 6, in <module>
    from acme.server import main
ModuleNotFoundError: No module named 'acme.server'
""",
        "ModuleNotFoundError: No module named 'acme.server'",
        "what is installed has no `acme.server`: try another version of the package",
    ),
    "a package of libraries": (
        """\
Installed 1 package in 2ms
Package `six` does not provide any executables.
""",
        "Package `six` does not provide any executables.",
        "the Python package `six` has no program to run: check its name in `args`",
    ),
    "a file that uv does not find": (
        """\
error: Failed to spawn: server.py
  cause: No such file or directory (os error 2)
""",
        "error: Failed to spawn: server.py: No such file or directory (os error 2)",
        missing_file("server.py"),
    ),
    "a program that uv does not find": (
        """\
error: Failed to spawn: acme-server
  cause: No such file or directory (os error 2)
""",
        "error: Failed to spawn: acme-server: No such file or directory (os error 2)",
        "install `acme-server`, or check that it is on PATH",
    ),
    "a Python that is not installed": (
        """\
error: No interpreter found for Python >=3.99 in managed installations or search path

hint: uv embeds available Python downloads and may require an update to install new versions.
""",
        "error: No interpreter found for Python >=3.99 in managed installations or search path",
        "no fitting Python was found, it needs Python >=3.99: `uv python install VERSION` adds one",
    ),
    "a registry that wants a login": (
        """\
error: No solution found when resolving tool dependencies
  cause: Because acme was not found in the package registry and you require acme, we can conclude that your requirements are unsatisfiable.

hint: An index URL (http://127.0.0.1:1/simple) could not be queried due to a lack of valid authentication credentials (401 Unauthorized)
""",  # noqa: E501 - as it writes it
        (
            "Because acme was not found in the package registry and you require acme, we can "
            "conclude that your requirements are unsatisfiable."
        ),
        REGISTRY_LOGIN,
    ),
    "npm that has to log in": (
        """\
npm error code E401
npm error 401 Unauthorized - GET http://127.0.0.1:1/acme
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log
""",
        "npm error 401 Unauthorized - GET http://127.0.0.1:1/acme",
        REGISTRY_LOGIN,
    ),
    "a private repository": (
        """\
   Updating https://git.invalid/acme/server (HEAD)
error: Failed to resolve `--with` requirement
  cause: Git operation failed
  cause: failed to fetch into: /root/.cache/uv/git-v1/db/65b1
  cause: process didn't exit successfully: `/usr/bin/git fetch --force` (exit status: 128)
         --- stderr
         fatal: could not read Username for 'https://git.invalid': terminal prompts disabled
""",
        "fatal: could not read Username for 'https://git.invalid': terminal prompts disabled",
        "its Git repository cannot be read: check the address, and that you may read it",
    ),
    "a proxy that npm does not trust": (
        """\
npm error code DEPTH_ZERO_SELF_SIGNED_CERT
npm error errno DEPTH_ZERO_SELF_SIGNED_CERT
npm error request to https://127.0.0.1:1/acme failed, reason: self-signed certificate
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log
""",
        "npm error request to https://127.0.0.1:1/acme failed, reason: self-signed certificate",
        CERTIFICATE,
    ),
    "a proxy that uv does not trust": (
        """\
error: Failed to fetch: https://127.0.0.1:1/simple/acme/
  cause: error sending request for url (https://127.0.0.1:1/simple/acme/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer
""",
        "invalid peer certificate: UnknownIssuer",
        CERTIFICATE,
    ),
    "a service that Node does not trust": (
        """\
TypeError: fetch failed
    at node:internal/deps/undici/undici:14976:13 {
  [cause]: Error: self-signed certificate
      at TLSSocket.onConnectSecure (node:_tls_wrap:1699:34) {
    code: 'DEPTH_ZERO_SELF_SIGNED_CERT'
  }
}
""",
        "Error: self-signed certificate",
        CERTIFICATE,
    ),
    "a database that Python does not reach": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 2, in <module>
    raise OSError(err, f'Connect call failed {address}')
ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 5432)
""",
        "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 5432)",
        not_listening("127.0.0.1:5432"),
    ),
    "a service that Python does not reach": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 2, in <module>
    raise URLError(err)
urllib.error.URLError: <urlopen error [Errno 111] Connection refused>
""",
        "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
        NO_SERVICE,
    ),
    "a script of another system": (
        """\
/usr/bin/env: 'python3\\r': No such file or directory
/usr/bin/env: use -[v]S to pass options in shebang lines
""",
        "/usr/bin/env: 'python3\\r': No such file or directory",
        FIRST_LINE,
    ),
    "a script without its interpreter": (
        """\
bash: line 1: /opt/server.py: cannot execute: required file not found
""",
        "bash: line 1: /opt/server.py: cannot execute: required file not found",
        FIRST_LINE,
    ),
    "a program for another processor": (
        """\
/opt/start.sh: 2: /opt/server: Exec format error
""",
        "/opt/start.sh: 2: /opt/server: Exec format error",
        OTHER_SYSTEM,
    ),
    "a program without a library": (
        """\
/opt/server: error while loading shared libraries: libacme.so.1: cannot open shared object file: No such file or directory
""",  # noqa: E501 - as it writes it
        (
            "/opt/server: error while loading shared libraries: libacme.so.1: cannot open shared "
            "object file: No such file or directory"
        ),
        "install the system's library `libacme.so.1`",
    ),
    "a module without a library": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 2, in <module>
OSError: libGL.so.1: cannot open shared object file: No such file or directory
""",
        "OSError: libGL.so.1: cannot open shared object file: No such file or directory",
        "install the system's library `libGL.so.1`",
    ),
    "Docker that wants a terminal": (
        """\
the input device is not a TTY
""",
        "the input device is not a TTY",
        "leave `-t` out of the options of `docker run`; `-i` stays",
    ),
    "an unknown option of Docker": (
        """\
unknown flag: --nosuch

Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]

Run 'docker run --help' for more information
""",
        "unknown flag: --nosuch",
        ARGUMENTS,
    ),
    "a program that wants a terminal": (
        """\
/opt/server.js:1
process.stdin.setRawMode(true);
              ^

TypeError: process.stdin.setRawMode is not a function
    at Object.<anonymous> (/opt/server.js:1:15)

Node.js v20.20.2
""",
        "TypeError: process.stdin.setRawMode is not a function",
        TERMINAL,
    ),
    "an archive that is not there": (
        """\
Error: Unable to access jarfile /srv/acme.jar
""",
        "Error: Unable to access jarfile /srv/acme.jar",
        missing_file("/srv/acme.jar"),
    ),
    "a project without that script": (
        """\
npm error Missing script: "start"
npm error
npm error To see a list of scripts, run:
npm error   npm run
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log
""",
        'npm error Missing script: "start"',
        "its `package.json` has no script `start`: check `args` and `cwd`",
    ),
    "a folder without a project": (
        """\
npm error code ENOENT
npm error syscall open
npm error path /nowhere/package.json
npm error errno -2
npm error enoent Could not read package.json: Error: ENOENT: no such file or directory, open '/nowhere/package.json'
npm error enoent This is related to npm not being able to find a file.
""",  # noqa: E501 - as it writes it
        (
            "npm error enoent Could not read package.json: Error: ENOENT: no such file or "
            "directory, open '/nowhere/package.json'"
        ),
        missing_file("/nowhere/package.json"),
    ),
    "too little memory": (
        """\
<--- Last few GCs --->

FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory
----- Native stack trace -----

 1: 0xb76db1 node::OOMErrorHandler(char const*, v8::OOMDetails const&) [node]
""",
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "it needs more memory: set `NODE_OPTIONS` to `--max-old-space-size=4096` in `env`",
    ),
    "a package that was changed": (
        """\
error: Failed to install the package
  cause: Hash mismatch for `six==1.17.0`

         Expected:
           sha256:0000
""",
        "Hash mismatch for `six==1.17.0`",
        "what was downloaded is not what was expected: change the hashes if you trust it",
    ),
    "a language that is not installed": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 2, in <module>
    return _setlocale(category, locale)
locale.Error: unsupported locale setting
""",
        "locale.Error: unsupported locale setting",
        "its locale does not exist here: set `LC_ALL` to `C.UTF-8` in `env`",
    ),
    "text that is taken for ASCII": (
        """\
Traceback (most recent call last):
  File "/opt/server.py", line 1, in <module>
UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3 in position 0: ordinal not in range(128)
""",
        (
            "UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3 in position 0: ordinal not "
            "in range(128)"
        ),
        "it takes all text for ASCII: set `PYTHONUTF8` to `1` in `env`",
    ),
    "a full disk, as Node says it": (
        """\
Error: ENOSPC: no space left on device, write
    at writeSync (node:fs:924:3) {
  code: 'ENOSPC'
}
""",
        "Error: ENOSPC: no space left on device, write",
        "the disk is full: make room, then try again",
    ),
    "a key that is to be set": (
        """\
Please provide a personal access token (PAT) with the --access-token flag or set the SUPABASE_ACCESS_TOKEN environment variable
""",  # noqa: E501 - as it writes it
        (
            "Please provide a personal access token (PAT) with the --access-token flag or set the "
            "SUPABASE_ACCESS_TOKEN environment variable"
        ),
        variable("SUPABASE_ACCESS_TOKEN"),
    ),
    "two keys that are to be set": (
        """\
Please set SLACK_BOT_TOKEN and SLACK_TEAM_ID environment variables
""",
        "Please set SLACK_BOT_TOKEN and SLACK_TEAM_ID environment variables",
        variable("SLACK_BOT_TOKEN and SLACK_TEAM_ID"),
    ),
    "a key in the words of a library": (
        """\
ValueError: The api_key client option must be set either by passing api_key to the client or by setting the OPENAI_API_KEY environment variable
""",  # noqa: E501 - as it writes it
        (
            "ValueError: The api_key client option must be set either by passing api_key to the "
            "client or by setting the OPENAI_API_KEY environment variable"
        ),
        variable("OPENAI_API_KEY"),
    ),
    "an argument that is missing": (
        """\
Please provide a database URL as a command-line argument
""",
        "Please provide a database URL as a command-line argument",
        "it needs another argument: add it to `args`",
    ),
    "a command that is missing": (
        """\
Required command was not provided.
""",
        "Required command was not provided.",
        "it needs another argument: add it to `args`",
    ),
    "settings that do not fit": (
        """\
Server error: [
  {
    "code": "too_small",
    "message": "Elasticsearch URL cannot be empty",
    "path": [
      "url"
    ]
  }
]
""",
        "Server error: Elasticsearch URL cannot be empty",
        None,
    ),
}
