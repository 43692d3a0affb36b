"""The words of requests and tools: how they are split, their stems, and what they mean."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

_TOKEN = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LOWER_CAMEL = re.compile(r"\b[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Japanese, Chinese, Korean: read in pairs of characters, because they have no spaces."""

_STOP = """
    a about all also am an and any anything are as at back be been but by can could did do does
    for from go going gonna had has have he her here him his how i if in into is it its just
    kindly know let like ll lot m many may maybe me much my need of off on one or our out over
    please re s shall she should so some someone something still t than that the their them then
    there these they thing this those to too up us ve very want was we were what when where
    which while who why will with would you your
"""
STOP = frozenset(_STOP.split())
"""Stop words."""


def words_of_prose(text: str) -> list[str]:
    """The words of a text without stop words; `camelCase` is split, but `GitHub` stays."""
    return [word for word in words_of(text) if word not in STOP]


def words_of_name(text: str) -> list[str]:
    """The words of an identifier: `snake_case`, `camelCase`, `kebab-case`."""
    return [word for word in _words(_split_camel_case(text)) if word not in STOP]


def words_of(text: str) -> list[str]:
    """All words of a text, in order."""
    return _words(_LOWER_CAMEL.sub(lambda match: _split_camel_case(match[0]), text))


def _split_camel_case(text: str) -> str:
    return _HUMP.sub(" ", text)


def _words(text: str) -> list[str]:
    plain = (text if text.isascii() else _strip_accents(text)).replace("%", " percent ")
    return [*_fine(_TOKEN.findall(plain.casefold()))]


def _strip_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not _is_accent(c)))


def _is_accent(character: str) -> bool:
    return "\u0300" <= character <= "\u036f"


def _fine(tokens: Iterable[str]) -> Iterable[str]:
    for token in tokens:
        if token.isascii():
            yield token
            if not token.isalpha():
                yield from _LETTERS.findall(token)  # `context7` is found by `context`, too
        elif _UNSPACED.search(token):
            yield from _pairs(token)
        else:
            yield token


def _pairs(token: str) -> Iterable[str]:
    if len(token) == 1:
        return (token,)
    return (token[at : at + 2] for at in range(len(token) - 1))


MEANINGS = """
get read retrieve fetch view: show see look open display load give grab print check
list: show enumerate which all every browse what-are what-s-in what-is-in what-s-inside
list: who-is-in inside exist
search find query: look seek lookup look-up look-for look-through hunt locate where discover
search find query: google mention
create add new make insert generate: build start set-up put open write register prepare draw
create add new make insert generate: sketch
update edit modify change patch set: adjust alter fix correct rewrite revise tweak turn mark
update edit modify change patch set: from-now-on
delete remove drop: erase clear wipe trash discard destroy kill throw-away throw-out get-rid-of
delete remove drop: take-down forget no-longer
write save store put append: keep record write-down remember overwrite
send post publish: tell notify share announce submit let-know
run execute evaluate: launch trigger perform kick-off try
stop cancel close end: quit abort halt terminate shut close-down done enough
move transfer: put shift bring relocate
rename: name call
copy duplicate clone fork: own-copy replicate mirror same
merge combine join: unite put-together
download export: save get pull grab hand-over
upload import attach: load bring put
convert transform export: turn
replace: substitute swap exchange swap-out overwrite
restore undo revert rollback reset: go-back bring-back recover unstage reopen
uncomplete reopen restore: not-done after-all
archive: put-away hide
schedule: plan book arrange once-a-day every-day daily recurring interval
assign: hand delegate owner responsible
assigned: on-my-plate assigned-to-me mine
count number total aggregate stats: how-many how-much amount
compare diff difference: change differ versus
explain describe details info: tell-me-about understand configured
explain analyze diagnose logs: why reason
analyze structure outline: organised organized organization built
audit check review inspect: examine
summarize summary: short gist brief tldr
validate validation check verify test: valid try sure work works
status health state: how-is alive on-track responsive still
status progress: finished yet ready busy
ping connection health: alive reachable
history log changelog: past before previous earlier since over-time
permissions access share sharing: who-can visible
users members: who-has who-is-in people
protect lock restrict encrypt: password secure
complete finish close resolve: done tick tick-off check-off get-done
transition status update: in-progress progress
reschedule update: postpone delay push-back put-off
respond reply answer: accept decline rsvp react-to
approve confirm accept: allow let-in okay accepted
deny reject: decline refuse do-not-let don-t-let
invite: ask
subscribe watch monitor: follow track alert keep-an-eye whenever notice
expire ttl expiration: disappear vanish after-minutes
wait: hold-on until pause
hover: mouse point-at
sort order rank rerank: order better-order arrange
associate association link relation: connect relate tie belong
file document: attachment pdf
directory folder: dir
text content: words writing body say says
image picture photo: drawing graphic icon
email gmail mail message: e-mail inbox letter
thread conversation: discussion chat
comment: remark note feedback reply
user member person: who somebody everyone colleague teammate people
author creator: who wrote
organization team company: business firm org
event calendar meeting: appointment invitation
task todo: chore to-do job errand
issue ticket bug: problem defect report story
label tag: category
page document: wiki article minutes
database: db
record row: entry line
field column property: attribute
repository project: repo code-base codebase code
pull request: pr
merge request: mr
function symbol: method
pipeline build workflow: ci
failure error logs: break broke broken fail red
deploy: live release ship put-live
web search internet: google online news latest
url page website web content: link site webpage web-page
directions route: drive-from drive-to driving walk way-to get-to travel how-do-i-get
weather forecast: rain sunny umbrella snow temperature cold warm wind storm
price pricing cost: expensive cheap
payment charge: pay paid
refund: money-back reimburse repay
invoice: bill
spreadsheet excel workbook sheet: table
chart plot graph: diagram draw visualize picture plot
presentation slide powerpoint: deck ppt pptx
documentation docs: manual guide help how-to
settings configuration: options preferences setup configured
organization: organisation
summarize: summarise
analyze: analyse
visualize: visualise
color: colour
favorite: favourite
license: licence
center: centre
catalog: catalogue
"""
"""Each line: synonyms that tools use, and after the colon the words that people use for them.

Words joined by `-` must all occur, in that order. Only verbs and nouns
of every trade: 126 lines with the nouns of single trades find 1 held-out request in 100 more.
"""

Stem = Callable[[str], str]
Phrase = tuple[str, ...]


def meanings(stem: Stem) -> Mapping[Phrase, frozenset[str]]:
    """The possible meanings of words and phrases, all as stems."""
    by_phrase: defaultdict[Phrase, set[str]] = defaultdict(set)
    for line in MEANINGS.strip().splitlines():
        terms, _, spoken = line.partition(":")
        meant = {stem(word) for word in terms.split()}
        for phrase in (*terms.split(), *spoken.split()):
            key = tuple(map(stem, phrase.split("-")))
            by_phrase[key] |= meant if len(key) > 1 else meant - {*key}
    return {phrase: frozenset(meant) for phrase, meant in by_phrase.items() if meant}


MOST_STEMS = 50_000
"""The number of cached words."""


class Stems:
    """The stem of a word; takes a tenth of a millisecond the first time."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        stem = self._known.get(word)
        if stem is None:
            # a stemmer has state: one for each thread
            stem = str(self._languages.stemmer("english").stemWord(word))
            if len(self._known) < MOST_STEMS:
                self._known[word] = stem
        return stem

    @cached_property
    def meanings(self) -> Mapping[Phrase, frozenset[str]]:
        """Maps words and phrases to the stems of their synonyms."""
        return meanings(self)

    @cached_property
    def _languages(self) -> Any:
        return import_module(
            "snowballstemmer"
        )  # untyped, and slow to import: it includes thirty languages
