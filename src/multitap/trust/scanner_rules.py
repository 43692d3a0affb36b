"""The scanner's rules: a weighted table of what attacks on a model look like.

A rule of weight 2 is enough by itself. Phrases of weight 1 also occur in honest tools, but not all
in one place. Rules are matched line by line, in lower case and with runs of blanks collapsed. Each
has required words, so that few patterns run on an honest text.
"""

from typing import NamedTuple

INSTRUCTIONS, EXFILTRATION, SECRET = "instructions", "exfiltration", "secret"
HIDDEN, LOOK_ALIKE = "hidden text", "look-alike name"
ENOUGH = 2
"""The weight at which a definition is suspicious."""
NEAR = 400
"""Characters within which findings count together."""


class Rule(NamedTuple):
    """A phrase of attacks."""

    name: str
    """Of several rules of one name, the heaviest counts."""
    kind: str
    weight: int
    needles: tuple[tuple[str, ...], ...]
    """One word of each group must be in the text."""
    pattern: str
    """Compiled on first use: most never are, and compiling all of them is slow."""


_PEOPLE = (
    r"(?:users?|humans?|persons?|people|operators?|customers?|anyone|anybody|them|him|transcript"
    r"|summary|owner)"
)
_NOT = (
    r"(?:do not|don'?t|never|must not|mustn'?t|should not|shouldn'?t|cannot|no need to|without"
    r"|avoid|refrain from|need not|not)"
)
_SAY = (
    r"(?:tell|told|inform|mention|notif|reveal|disclos|show|alert|report|point(?:ing)? out|bring"
    r"(?:ing)? up|warn|bother|announc|divulg|explain|expos|let .{0,20}know|say|acknowledg|display"
    r"|surfac|refer)\w*"
)
_GIVE = (
    r"(?:pass|send|include|attach|forward|provide|put|hand|upload|post|append|share|mirror|copy"
    r"|email|e-mail|transmit|submit|leak|exfiltrate|embed|encode|add|write|insert|supply|deliver"
    r"|mail|paste|place|give|forwarded|sent|uploaded|mirrored|passed|included)"
)
_TAKE = (
    r"(?:read|open|load|cat|collect|gather|fetch|retrieve|access|extract|grab|find|locate|look|get"
    r"|dump|export|contents?|list|scan|call)"
)
_FILES = (
    r"(?:~/\.\w|/\.?ssh\b|\.ssh/|\bid_(?:rsa|dsa|ecdsa|ed25519)|\.aws/|\.netrc|\.npmrc|\.pypirc"
    r"|\.pgpass|\.kube/|\.docker/|\.gnupg|\w_history\b|mcp\.json|/etc/(?:passwd|shadow|sudoers)"
    r"|application_default_credentials|\.git-credentials|login data|saved passwords|keychain"
    r"|wallet\.dat|(?<![\w*])\.env\b|private keys?\b|ssh keys?\b|secrets?\.(?:json|ya?ml|toml)"
    r"|claude_desktop_config|/root/|credentials (?:file|store)|cookies\.sqlite|shell history"
    r"|browser(?:'s)? (?:history|cookies|passwords))"
)
_FILE_WORDS = (
    "~/.|ssh|id_|.aws|.netrc|.npmrc|.pypirc|.pgpass|.kube|.docker|.gnupg|_history|shell history"
    "|mcp.json|/etc/|credentials|login data|passwords|keychain|wallet.dat|.env|private key|secret."
    "|secrets.|claude_desk|/root/|cookies"
)
_TALK = (
    r"(?:conversation|chat (?:history|log|list)|chat\b|user messages?\b|system prompt|transcript"
    r"|context window|dialogue|session cookie|user'?s (?:question|request|input))"
)
_TALK_WORDS = (
    "conversation|chat|user message|system prompt|transcript|context window|dialogue|cookie|user's"
)
_VALUABLES = (
    r"(?:api[- _]?keys?\b|(?:access|auth|api|bearer|oauth) tokens?\b|tokens and\b|passwords?\b"
    r"|credentials\b|secrets\b|environment variables|env vars|private (?:key|repositor)\w*"
    r"|(?:user'?s|all|their) contacts\b|clipboard|all variables|browsing history|credit card"
    r"|project files|session (?:id|cookie))"
)

_TABLE: tuple[tuple[tuple[str, str, int], str, str], ...] = (
    # name, kind and weight; required words; pattern
    (
        ("secrecy", INSTRUCTIONS, 2),
        (
            "tell|told|inform|mention|notif|reveal|disclos|show|alert|report|point|bring|warn"
            "|bother|announc|divulg|explain|expos|know|say|acknowledg|display|surfac|refer & not "
            "|n't|never|without|avoid|refrain|no need|dont"
        ),
        (
            rf"\b{_NOT}\b(?: \w+){{0,2}} {_SAY}\b.{{0,60}}?(?:\b{_PEOPLE}\b|\b(?:this|it|that"
            r"|these)\b(?: (?:step|instruction|change)\b|[.;,)!]| to the| -->|$)|(?:the"
            r"|any) (?:change|step|instruction|address|file|approval)\b|that you)"
        ),
    ),
    (
        ("secrecy", INSTRUCTIONS, 2),
        (
            "secret|hidden|confidential|yourself|quiet|hide|conceal|leave|omit|withhold"
            "|between us & keep|kept|remain|stay|hid|conceal|leave|omit|withhold"
        ),
        (
            r"\b(?:keep|kept|remains?|stays?)\b.{0,40}\b(?:secret|hidden|confidential|to yourself"
            r"|quiet|between us|invisible)\b|\b(?:hide|hidden|conceal\w*|leave|omit"
            rf"|withhold)\b.{{0,50}} (?:from|out of) .{{0,25}}\b{_PEOPLE}\b"
        ),
    ),
    (
        ("secrecy", INSTRUCTIONS, 2),
        "user|human|person|people & not |n't|never|nothing|unaware|no idea",
        (
            r"\b(?:users?|humans?|persons?|people)\b (?:\w+ )?(?:must|should|need|does|do|may|will"
            "|would|can|knows?|is|are|has|have)?(?: ?n[o']t| never| nothing| no idea"
            r"| unaware)\b.{0,25}?\b(?:know|see this|told|aware|notice|informed|of it|be (?:told"
            "|shown|asked)|see (?:it|this|that))"
        ),
    ),
    (
        ("covert", INSTRUCTIONS, 2),
        (
            "secretly|covertly|silently|quietly|discreetly|stealthily|behind the scenes|unnoticed"
            "|invisibly"
        ),
        (
            r"\b(?:secretly|covertly|silently|quietly|discreetly|stealthily|invisibly|unnoticed"
            r"|behind the scenes)\b,? (?:and )?(?:also |then )?(?:add|replace|send|forward|include"
            "|copy|upload|insert|run|execute|change|append|read|call|pass|attach|post|bcc|cc"
            r"|collect|transmit|write|approve)\b"
        ),
    ),
    (
        ("override", INSTRUCTIONS, 2),
        "ignor|disregard|forget|overrid|bypass|circumvent|supersed|over th",
        (
            r"\b(?:ignor|disregard|forget|overrid|bypass|circumvent"
            r"|supersed)\w*\b.{0,40}?\b(?:(?:all|any|every|your|the|previous|prior|earlier|above"
            r"|system|safety|security|user'?s|developer'?s?|my|these) )+(?:\w+ )?(?:instructions?"
            "|prompts?|guidelines?|guardrails?|safety|restrictions|polic(?:y|ies)|requests?|checks"
            r"|directives|wishes)\b|\boverride safety|\bforget (?:everything|all|your|what)\b"
            r"|\bignore what\b|\bover (?:those|that) of the user"
        ),
    ),
    (
        ("persona", INSTRUCTIONS, 2),
        (
            "you are now|from now on|unrestricted|jailbr|no restrictions| mode|new instructions"
            "|new system|without restrictions"
        ),
        (
            r"\byou are now\b|\bfrom now on,? (?:you|act|the assistant|always)\b"
            r"|\bunrestricted (?:ai|agent|assistant|mode)|\bjailbr(?:eak|oken)|\bno restrictions\b"
            r"|\b(?:maintenance|developer|god|debug|admin) mode\b.{0,40}\b(?:you|forget|ignore)"
            r"|\bnew (?:system )?instructions\b ?(?::|are|follow)|\bwithout restrictions\b"
        ),
    ),
    (
        # tags of chat templates and system prompts, which give a text more weight than it has
        ("markup", INSTRUCTIONS, 2),
        "<|[inst|[system|# system|system:|[important|assistant:|developer:|[admin|[hidden|[/inst",
        (
            r"<\s*/?\s*(?:important|system|secret|hidden|instructions?|critical|assistant|admin"
            r"|prompt|rules?|override|mandatory)\b[^>]{0,40}>|<\|[a-z_]{2,20}\|>|\[/?(?:inst|system"
            r"|important|admin|hidden)\]|<<sys>>|#{2,} ?(?:system|instructions?)\b ?:|(?:^"
            "|[.!>-] ?)(?:system|assistant|developer) ?: "
        ),
    ),
    # not enough by itself: honest texts in Markdown have comments, too
    (("comment", INSTRUCTIONS, 1), "<!--|[//]:", r"<!--|\[//\]: ?#"),
    (
        ("approval", INSTRUCTIONS, 2),
        "confirm|permission|approv|consent|agreed|authori",
        (
            r"\b(?:do not|don'?t|never|skip|no need to)\b.{0,20}?\b(?:ask|request|wait|prompt"
            r"|require|seek|any)\b.{0,30}\b(?:confirm|permission|approv|consent)\w*"
            r"|\bwithout (?:asking|waiting|requesting|seeking|any|further)\b.{0,30}\b(?:confirm"
            r"|permission|approv|consent)\w*|\b(?:user|human|person)s? (?:has"
            "|have) already (?:been )?(?:agreed|approved|consented|confirmed|given|authori[sz]ed)"
            r"|\bapprov\w+ (?:all|every|each|any)\b.{0,50}\bwithout\b"
        ),
    ),
    (
        ("files", INSTRUCTIONS, 2),
        _FILE_WORDS,
        (
            rf"\b(?:{_TAKE}|{_GIVE}|requires?|needs?"
            # not if the tool says that it refuses such a file
            rf"|use)\b.{{0,70}}?{_FILES}(?!.{{0,40}}\b(?:rejected|blocked|denied|not allowed"
            r"|refused|forbidden|disallowed)\b)"
        ),
    ),
    (("files", INSTRUCTIONS, 1), _FILE_WORDS, _FILES),
    (
        ("talk", EXFILTRATION, 2),
        (
            "conversation|chat|user message|system prompt|transcript|context window"
            "|dialogue & complete|full|entire|whole|all|every|each|previous|your|summary"
        ),
        (
            rf"\b{_GIVE}\b.{{0,50}}?(?<!not )\b(?:complete|full|entire|whole|all|every|each"
            r"|previous|your"
            r"|summary)\b.{0,25}?\b(?:conversation|chat history|chat list|chat\b|system prompt"
            "|user messages?|transcript|dialogue|context window)"
        ),
    ),
    (
        ("talk", EXFILTRATION, 1),
        _TALK_WORDS,
        rf"\b(?:{_GIVE}|with|reveal|output)\b.{{0,60}}?{_TALK}",
    ),
    (
        ("valuables", EXFILTRATION, 1),
        (
            "key|token|password|credential|secrets|environment|env vars|cookie|private|contacts"
            "|clipboard|variables|history|credit card|project files|session"
        ),
        rf"\b{_GIVE}\b.{{0,70}}?{_VALUABLES}",
    ),
    (
        # a tool that wants to be used before all others gets what was meant for them
        ("before all", INSTRUCTIONS, 2),
        (
            "before answering|before responding|before replying|this tool must be used"
            "|must be used for|must always use it|before any other tool|before every other"
        ),
        (
            r"\bbefore (?:answering|responding|replying)\b.{0,40}\b(?:call|use|invoke|run)\b"
            r"|\bthis tool must be used (?:for (?:all|any|every)|instead)|\bmust always (?:use it"
            r"|call this tool) (?:instead|before)|\bbefore (?:any|every) other tool"
        ),
    ),
    (
        ("first", INSTRUCTIONS, 1),
        "before|prior to|first|always|every|any ",
        (
            # preferring it to others counts below
            r"\b(?:always|must|should)\b.{0,20}\b(?:call|use|invoke|run)\b.{0,10}\bthis\b.{0,60}"
            r"\b(?:first|before|every|any|all|instead|over)\b"
            r"|\b(?:before|prior to)\b (?:\w+ )?(?:using|calling|each|every|any|you|this|filling"
            r"|choosing)\b.{0,80}\b(?:read|open|include|pass|provide|send|run|post|collect)\b"
            r"|\bfor (?:any|every|all|each) (?:\w+ )?(?:request|question|message|prompt|task|repl"
            "|answer)"
        ),
    ),
    (
        ("all tools", INSTRUCTIONS, 1),
        "tool|for everything|next call|other server",
        (
            r"\b(?:any|all|every) (?:other )tools?\b|\bother servers?\b|\btools? (?:of"
            r"|from) (?:any )?(?:other|another)|\bfor everything\b|\b(?:the"
            r"|your) next (?:tool )?call\b"
        ),
    ),
    (
        ("replace tool", INSTRUCTIONS, 1),
        "tool & instead of|supersede|replaces|deprecated|prefer|never call|do not use|don't use",
        (
            r"\binstead of\b.{0,40}\btools?\b|\bsupersedes (?:any|all|every)|\breplaces? (?:any|all"
            r"|every)|\b(?:do not|don'?t|never) (?:use|call)\b.{0,50}\b(?:other server|of any other"
            r"|from other|those again)|\bprefer this\b.{0,30}\bover\b|\bdeprecated and (?:insecure"
            "|unsafe|dangerous)"
        ),
    ),
    (
        ("even if", INSTRUCTIONS, 1),
        "even if|even when|regardless|whatever|no matter",
        (
            r"\b(?:even (?:if|when)|regardless of (?:what|whether)|whatever"
            r"|no matter what) (?:the )?(?:user|human|it does|they)\b"
        ),
    ),
    (
        # a tool that speaks of the use of others may change what they do
        ("shadow", INSTRUCTIONS, 1),
        " called| used| invoked| run|affects|after calling|after using|after listing",
        (
            r"\b(?:when|whenever|once|after(?! this tool)|if|each time)\b.{0,60}\b(?:is|are"
            r"|was|has been|gets) (?:called|used|invoked|run)\b|\baffects the behaviou?r of\b"
            r"|\bafter (?:calling|using|listing)\b.{0,40}\b(?:call|use|run|forward|read|send"
            r"|execute)\b"
        ),
    ),
    (
        ("redirect", INSTRUCTIONS, 1),
        (
            "recipient|destination|address|account|attendee|payee|bank|number|bcc|mails|messages"
            "|payment & chang|replac|redirect|switch|rewrit|substitut|alter|must|should|has to"
            "|have to|add|cc"
        ),
        (
            r"\b(?:change|replace|redirect|switch|rewrite|substitute|alter)\b.{0,40}\b(?:recipient"
            r"|destination|address|account|attendee|payee|bank|number)\b|\b(?:recipient|destination"
            r"|address|e?mails?|messages|payments?)\b.{0,30}\b(?:must|should|has to|have to"
            r"|shall) be (?:changed|replaced|sent|redirected|forwarded)|\b(?:add|include|put|bcc"
            r"|cc)\b.{0,40}@.{0,60}\b(?:attendee|bcc|cc|recipient)"
        ),
    ),
    (
        ("to whom", EXFILTRATION, 1),
        "@|0x|+|http & send|sent|forward|mail|post|mirror|upload|transfer|replace|add|change",
        (
            r"\b(?:send|sent|forward|forwarded|email|mail|post|mirror|upload|transfer|replace|add"
            r"|change)\b.{0,80}(?:[\w.+-]+@[\w-]+\.\w|\b0x[0-9a-f]{40}\b|\+\d{8,}|https?://)"
        ),
    ),
    (
        ("must call", INSTRUCTIONS, 1),
        "assistant|the model|the agent|you must|the llm|the ai ",
        (
            r"\b(?:the )?(?:assistant|model|agent|llm|ai) (?:must|should|shall|has to"
            r"|needs? to)\b(?! not)|\bassistant ?:|\byou must (?:also |then |first "
            # when it is this tool that must be called counts above
            r"|always )?(?:call(?! this)|read|provide|pass|send|obey|follow|run)\b"
        ),
    ),
    (
        ("hand over", INSTRUCTIONS, 1),
        "result|output|content & pass|forward|send|include|append|hand",
        (
            r"\b(?:pass|forward|send|include|append|hand)\b (?:over )?(?:the|its|their"
            r"|all) (?:\w+ )?(?:results?|outputs?|contents?)\b.{0,20}\b(?:here|in|as|to|with|back"
            r"|without)\b"
        ),
    ),
    (
        ("follow", INSTRUCTIONS, 2),
        "follow |obey|carry out|execut|run any|run whatever|instructions are in",
        (
            r"(?<!not )(?<!never )(?:\bfollow (?:the |any |all |its )?instructions? (?:in|below"
            r"|returned|found|it|that|from|of|:)|\bfollow the instructions ?:|\bobey\b|\b(?:execute"
            r"|run|carry)\b (?:out )?(?:any|every|all|whatever)\b.{0,40}\b(?:commands?"
            r"|instructions?|results?)\b|\bexecute the commands? found|\binstructions are in\b"
            r"|\bcarry out whatever\b)"
        ),
    ),
    (
        ("shell", EXFILTRATION, 2),
        "curl|wget|base64 -d|invoke-webrequest|nc -e|iwr",
        (
            r"\b(?:curl|wget|iwr|invoke-webrequest)\b.{0,120}(?:\| ?(?:sudo )?(?:ba|z)?sh\b|-d ?@"
            r"|--data\S* ?@|-f ?\S*@|-x post)|\b(?:run|execut|call)\w*\b.{0,15}\b(?:curl|wget) \S"
            r"|base64 -d ?\||\bnc -e\b"
        ),
    ),
    (
        ("run env", INSTRUCTIONS, 1),
        "run `|execute `|run: |execute: |run env|run printenv",
        (
            r"\b(?:run|execute):? `?(?:env|printenv|set|cat|type|curl|wget|bash|sh|python"
            r"|powershell)\b"
        ),
    ),
    (
        # a client that shows it loads the address, with the data in it, and nobody has clicked
        ("beacon", EXFILTRATION, 2),
        "![|<img|<iframe|<script",
        (
            r"!\[[^\]]{0,200}\]\(\s*https?://[^)\s]{1,300}[?=&{<$]|<(?:img|iframe"
            r"|script)\b[^>]{0,200}\bsrc ?= ?\W{0,3}https?://[^>]{0,300}[?{$+]"
        ),
    ),
    (
        # services that take whatever is sent to them, for whoever made the address
        ("dead drop", EXFILTRATION, 2),
        (
            "webhook.site|ngrok|pipedream|requestbin|burpcollaborator|oastify|interact.sh|dnslog"
            "|oast.|beeceptor|requestcatcher|transfer.sh|hookb.in|serveo|trycloudflare|canarytoken"
        ),
        (
            r"\b(?:webhook\.site|[\w-]+\.ngrok(?:-free)?\.(?:io|app|dev)|pipedream\.net"
            r"|requestbin\.\w+|burpcollaborator\.net|oastify\.com|interact\.sh|dnslog\.cn"
            r"|oast\.(?:pro|live|site|online|fun|me)|beeceptor\.com|requestcatcher\.com"
            r"|transfer\.sh|hookb\.in|serveo\.net|trycloudflare\.com|canarytokens?\.\w+)"
        ),
    ),
    (
        # honest tools name these, too; addresses of this machine and its network do not count
        ("drop", EXFILTRATION, 1),
        (
            "hooks.slack.com/services|discord.com/api/webhooks|discordapp.com/api/webhooks"
            "|api.telegram.org/bot|http://1|http://2|http://3|http://4|http://5|http://6|http://7"
            "|http://8|http://9"
        ),
        (
            r"hooks\.slack\.com/services/t|discord(?:app)?\.com/api/webhooks/\d"
            r"|api\.telegram\.org/bot|http://(?!127\.|0\.|10\."
            r"|192\.168\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"
        ),
    ),
    (
        ("data link", EXFILTRATION, 2),
        "data:text/html|data:application/javascript|javascript:",
        r"data:(?:text/html|application/javascript)[;,]|\bjavascript:\S",
    ),
)


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(group.split("|")) for group in text.split(" & "))


RULES = tuple(Rule(*head, _groups(groups), pattern) for head, groups, pattern in _TABLE)

PARAMETERS = (
    r"\b(?:contents? of|conversation history|chat history|system prompt|id rsa|ssh (?:private )?key"
    r"|dot ssh|shell history|browser history|env file|all messages)\b"
)
"""Names of parameters that honest tools hardly use; two of them are suspicious."""

_SECRETS: tuple[tuple[str, str, str], ...] = (
    ("an AWS key", "AKIA|ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    (
        "a GitHub token",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})",
    ),
    ("a GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20}"),
    ("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
    ("an Anthropic key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{24,}"),
    ("an OpenAI key", "sk-", r"\bsk-(?!ant-)(?:proj-|svcacct-)?[A-Za-z0-9_-]{32,}"),
    ("a Google key", "AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a Stripe key", "_live_", r"\b[rs]k_live_[A-Za-z0-9]{20,}"),
    ("an npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,}\b"),
    (
        "a JSON web token",
        "eyJ",
        r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    ),
    (
        "a private key",
        "PRIVATE KEY-----",
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s*[A-Za-z0-9+/\\]",
    ),
)
SECRETS = tuple(
    (what, tuple(alternatives.split("|")), pattern) for what, alternatives, pattern in _SECRETS
)
"""The patterns of secrets, each with its prefix; case-sensitive."""
