"""A server with skills: `skill_server.py ERA NAME [PORT]`; in the old era, as resources."""

import hashlib
import sys

from plain_server import META, Plain, serve

SKILLS = f"{META}skills"


class Skilled(Plain):
    def __init__(self, era, name):
        super().__init__(era)
        manual = f"---\nname: refunds\ndescription: how {name} refunds\nlicense: MIT\n---\nDo it.\n"
        self.files = {
            "skill://refunds/SKILL.md": manual,
            "skill://refunds/docs/rules.md": f"rules of {name}",
        }

    def introduction(self):
        said = super().introduction()
        said["capabilities"]["extensions"] = {}
        if self.era == "new":
            said["capabilities"]["extensions"] = {SKILLS: {"directoryRead": True}}
        return said

    def entry(self):
        description = self.files["skill://refunds/SKILL.md"].splitlines()[2].partition(": ")[2]
        return {
            "uri": "skill://refunds/SKILL.md",
            "frontmatter": {"name": "refunds", "description": description, "license": "MIT"},
            "resources": [
                {
                    "uri": uri,
                    "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
                    "size": len(text.encode()),
                }
                for uri, text in self.files.items()
            ],
        }

    async def result(self, method, params, able, connection, send):
        uri = params.get("uri")
        match method:
            case "skills/list" if self.era == "new":
                if "cursor" not in params:
                    return {**self.listed(skills=[]), "nextCursor": "2", "ttlMs": 5000}
                return {**self.listed(skills=[self.entry()]), "ttlMs": 9000}
            case "skills/get" if self.era == "new" and uri in self.files:
                return {"skill": self.entry(), "ttlMs": 0, "cacheScope": "private"}
            case "resources/directory/read" if self.era == "new" and uri == "skill://refunds":
                docs = {"uri": "skill://refunds/docs", "name": "docs"}
                manual = {"uri": "skill://refunds/SKILL.md", "name": "SKILL.md"}
                return self.listed(resources=[{**docs, "mimeType": "inode/directory"}, manual])
            case "resources/directory/read" if self.era == "new":
                raise ValueError("not a folder")
            case "resources/list" if self.era == "old":
                return self.listed(resources=[{"uri": uri, "name": uri} for uri in self.files])
            case "resources/list":
                return self.listed(resources=[])
            case "resources/read" if uri in self.files:
                return self.listed(contents=[{"uri": uri, "text": self.files[uri]}])
        return await super().result(method, params, able, connection, send)


if __name__ == "__main__":
    serve(Skilled(*sys.argv[1:3]), *sys.argv[3:])
