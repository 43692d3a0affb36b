"""Maps the words people use to the words tools use."""

from collections import defaultdict
from collections.abc import Callable, Mapping

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
    found: defaultdict[Phrase, set[str]] = defaultdict(set)
    for line in MEANINGS.strip().splitlines():
        told, _, spoken = line.partition(":")
        meant = {stem(word) for word in told.split()}
        for phrase in (*told.split(), *spoken.split()):
            key = tuple(map(stem, phrase.split("-")))
            found[key] |= meant if len(key) > 1 else meant - {*key}
    return {phrase: frozenset(meant) for phrase, meant in found.items() if meant}
