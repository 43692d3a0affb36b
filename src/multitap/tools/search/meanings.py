"""What people say, and what tools call it."""

from collections import defaultdict
from collections.abc import Callable, Mapping

MEANINGS = """
get read retrieve fetch view: show see look open display load give grab print check
list: show enumerate which all every browse what-are what-s-in what-is-in what-s-inside who-is-in
list: inside exist
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
path location: where
size sizes storage: space big large biggest take-up heavy
file filesystem local: disk computer machine laptop
device: laptop phone computer machine
text content: words writing body say says
extract text content: say says pull
image picture photo: drawing graphic icon
screenshot: picture-of-the-page picture capture screen-shot photo
screencast record video: film capture
audio sound recording: noise listen
sound effects: noise
speech voice audio: aloud out-loud speak talk spoken
transcript transcribe speech: said say spoken type-up
video: clip movie film
music song: tune melody jingle
call phone: ring dial
agent assistant: bot chatbot bots
email gmail mail message: e-mail inbox letter
draft: do-not-send don-t-send not-send
thread conversation: discussion chat
channel: room
message: announcement come-in
reaction emoji: thumbs-up heart react smiley
comment: remark note feedback reply
user member person: who somebody everyone colleague teammate people
author creator: who wrote
owner holder shareholder: owns own
customer contact: client person people
organization team company: business firm org
organization: organisation hierarchy reporting-structure
event calendar meeting: appointment invitation
freebusy availability busy: free available
reminder: remind alarm
task todo: chore to-do job errand
due date deadline: due today
card: item
list board: column
checklist: to-do steps
issue ticket bug: problem defect report story
issue error event exception: crash failure bug broke
incident: outage downtime
worklog time: hours log-hours log-time spent
label tag: category tags
page document: wiki article minutes
section sections: chapter part
note vault: journal diary
periodic daily note: diary journal
database: db
table: spreadsheet
record row: entry line
field column property: attribute
field property schema: attribute kinds
schema structure: kinds shape what-fields what-columns layout
sql query select: data
index: indices
redis key: cache
vector semantic similar: alike resembling embedding
graph node relation: network
memory entity observation knowledge: remember know recall
documentation knowledge: manual
performance explain: slow slowly lag speed
performance trace audit: slow slowly fast speed sluggish
repository project: repo code-base codebase code
checkout branch: switch switch-over
commit: checked-in
unstaged working diff: uncommitted since-the-last-commit
pull request: pr
merge request: mr
status check: checks pass green
function symbol: method
usage reference: called used caller where-used in-use
usage credit: burn consumed spend
pipeline build workflow: ci
failure error logs: break broke broken fail red
flaky: sometimes unreliable unstable random intermittent
deploy: live release ship put-live
rollback rollout: previous-version earlier-version
scale replicas: copies instances
logs: printed output
container pod: pods
kubernetes kubectl pod: cluster k8s
alert monitor: firing alarm warning
host server: machine
feature flag: toggle switch turn-on turn-off enable
browser page navigate: website site tab
page tab: tabs
navigate url: go visit website go-to
click: press tap hit button
drag: pull slide slider
type fill: enter input box
console: javascript javascript-errors
network request response: traffic ajax http-call server-answer
web search internet: google online news latest
url page website web content: link site webpage web-page
scrape extract fetch: pull grab
crawl map: all-pages whole-site every-page
directions route: drive-from drive-to driving walk way-to get-to travel how-do-i-get
directions route: how-do-i-drive road
distance: far
matrix duration travel: how-long
geocode address coordinates location: where street exactly
places poi category nearby: near restaurant shop cafe hotel near-me around
elevation altitude: high height tall
area polygon: square cover
isochrone reachable: reach minutes
cycling: bike bicycle
weather forecast: rain sunny umbrella snow temperature cold warm wind storm foggy humidity hot
weather forecast: sunshine degrees
weather range forecast: weekend
air quality pollution: air smog breathe
time timezone: clock hour what-time
convert time timezone: pm am
calculate math expression: percent plus minus times divided
price pricing cost: expensive cheap
payment charge: pay paid
refund: money-back reimburse repay
invoice: bill issued
dispute: contest chargeback complain
balance: money funds how-much-money
subscription: plan membership
coupon discount: promo
stock ticker: share
stock price history: doing performing
earnings: earn profit quarter
analyst recommendations: expert experts think
financials: revenue income
spreadsheet excel workbook sheet: table
cell: cells
pivot: sum-up
chart plot graph: diagram draw visualize picture plot
chart percentage: percent
line chart trend: over-time development
histogram distribution frequency: how-often
presentation slide powerpoint: deck ppt pptx
shape: star arrow box circle rectangle
connector: arrow line
heading header: title
color shading fill: colour color paint
style format: look
pdf: print
generate: random strong
login authenticate: sign-in log-in
paper research article: study publication scientific academic preprint
latex: tex
citation: cite
article wikipedia summary: who-was who-is what-was facts
subreddit reddit: r
hot top: popular trending best
documentation docs: manual guide help how-to
library docs: package framework
design figma: mockup
item list: left remaining
policy: rule rules enforce
batch multiple: at-once these ten many
research: dig dig-deep
snapshot observe: can-be-clicked clickable
language: parse
file: yaml json txt csv
sorted range: leaderboard
profile: phone-number title
template: ready-made layouts boilerplate blank
settings configuration: options preferences setup configured
insight memo: finding
metadata info: lines last-changed changed modified
summarize: summarise
analyze: analyse
visualize: visualise
color: colour
favorite: favourite
license: licence
center: centre
catalog: catalogue
finance stock cryptocurrency market: bitcoin btc ethereum eth crypto nft blockchain token coin
finance stock investing market: asset equity equities shares trading trader etf bond dividend ipo
finance stock investing market: options nasdaq ticker
investing portfolio wealth finance: invest investment savings retirement returns
currency exchange convert: usd eur gbp jpy dollar euro yen pound btc rate
loan repayment mortgage: debt credit interest payoff
tax: taxes vat
travel trip hotel accommodation: vacation holiday getaway resort lodge motel hostel rentals
travel trip hotel accommodation: journey destination stay
travel tourism attraction: sightseeing landmark museum tours visit tourist itinerary destination
travel tourism attraction: festival explore-the-city
flight aviation airline: fly flying airport plane departing
recipe cooking meal food: dish dessert cake cocktail smoothie pasta chicken ingredient bake
recipe cooking meal food: breakfast cook
diet nutrition calorie: nutritional allergies vegan eat weight food
law legal: landlord lawsuit contract court attorney lawyer regulation rights fine statute illegal
legislation congress politics: bill law lawmaker senator representative parliament vote election
map navigation route directions location: nearby transportation traffic commute
course learning education training: class teacher tutor lesson learn subject skill workshop
course learning education training: outschool
flashcard learning review: memorize exam vocabulary study
translate language: spanish french german chinese japanese english foreign
image photo video edit filter: retouch crop look vintage tone portrait sunset
image picture art: painting artwork landscape scenery
news headline event: gossip breaking journalism happening current
movie tv show streaming media entertainment: watch film series documentary drama comedy episode
movie tv show streaming media entertainment: netflix
music playlist song: tune melody soundtrack band artist album hits tracks spotify
audio speech: voice sound read-aloud
game play: player gamer fun
ticket event concert theater: gig show stand-up rave festival
space nasa astronaut: astronomy moon mars rocket telescope apollo planet galaxy
domain url: registrar dot-com
website deploy publish: netlify blog homepage host hosting
seo keyword ranking traffic website: search-engine visibility backlink organic visitors
advertising marketing ads: campaign promote banner promotion ad audience shopify
rewrite content writing: essay caption slogan phrase wording rephrase cover-letter
charity nonprofit: donate donation volunteer
job career hire resume: hiring interview cv vacancy salary freelancer freelance employer
rent house: lease flat tenant apartment
company business: acquisition competitor firm corporation startup enterprise
census population data: resident inhabitants employed graduates demographics household percentage
census population data: statistics
pilot aviation: metar taf notam aerodrome terminal
server ssh command: disk-usage restart reboot
children educational activities: kid child toddler preschool year-old son daughter
health medical clinical: hospital doctor disease flu vaccine virus patient symptoms medicine
health medical clinical: illness
gift: present surprise birthday
coupon discount deal: cheap cheapest bargain sale
horoscope astrology tarot: zodiac star-sign fortune
plant gardening: watering houseplant soil flower
workout fitness plan: muscle gym exercise strength shape
paper academic research: scholarly journal studies literature publication scientist
crypto finance: wallet
car vehicle: electric drive dealer ev automobile
fashion style: wear clothes outfit dress
survey form questionnaire: quiz poll
memory store retrieve: remember recall forget
document pdf summary: report paper
design: ui ux graphic designer
productivity agent assistant: goal efficient schedule
wiki confluence page: article encyclopedia knowledge-base
user member account: colleague teammate person
restrict restriction permission: limit who-may who-can permit certain
monitor: watcher watch observe
vba macro: macros
entity relation observation graph memory knowledge: remember forget person fact connected
entity relation observation graph memory knowledge: everything-you
git branch: line-of-development lines-of-development
git staged staging add: prepare next-commit edits
git repository commit: revision checkout clean repo
navigate back: return previous before
password vault bitwarden login: secret credentials sign-in
crm hubspot contact: lead customer
subscription plan: recurring membership
query search: lookup
literature paper: medical
"""
"""Each line: synonyms that tools use, and after the colon the words that people use for them.

Words joined by `-` must all occur, in that order. Written by hand, from general knowledge and
with requests in view; docs/search.md says which, and what the list is worth.
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
            # a word is searched for itself anyway; a phrase is not
            by_phrase[key] |= meant if len(key) > 1 else meant - {*key}
    return {phrase: frozenset(meant) for phrase, meant in by_phrase.items() if meant}
