"""Plain word lists of the recall worlds: names, keys, values, chatter and word pieces.

The default model's tokenizer is built from the same lists, so their order is part of the
format: append, never sort or remove, or the shipped token ids no longer match.
"""

# ruff: noqa: SIM905 - a list of words is easier to read and to extend without the quotes.

NAMES = tuple(
    """Ada Ben Clara David Emma Frank Grace Henry Irene Jack Kate Leo Maria Noah Olga Paul Rosa
Sam Tom Vera Will Anna Bob Carl Diana Eric Fiona George Hannah Ivan Julia Kevin Laura Mark Nina
Oscar Peter Rachel Simon Tina Victor Wendy Alan Betty Chris Dora Edward Eva Felix Gina Hugo Ida
Jane John Karl Lena Lucy Martin Mary Nora Otto Pia Quinn Robert Sara Stefan Theo Ursula Walter
Yara Zoe Alice Amir Bella Bruno Cora Dan Ella Elias Fatima Finn Greta Hans Ines Jonas Kai Lars
Lila Mia Milan Nadia Nils Omar Paula Ravi Ruth Sofia Sven Tara Tim Uma Vince Wanda Yusuf Zara
Abel Agnes Boris Celia Cyril Dario Elena Ethan Gabriel Helen Igor Jasmin Joel Kira Liam Lydia
Marco Miriam Nathan Olivia Pablo Petra Ralph Rita Samuel Silvia Tobias Viktor Xenia Yves""".split()
)

# Never used in training: what the model does with real names it has not met.
UNSEEN_NAMES = tuple(
    """Marta Gregory Priya Dmitri Louise Hiroshi Beatrice Anton Chloe Rashid Ingrid Malcolm Yuki
Bernard Camila Desmond Esther Fabian Gloria Harvey Isabel Jerome Katrin Lorenzo Monica Norbert
Ophelia Patrick Rebecca Sergio Tamara Ulrich Valerie Winston Xavier Yolanda Zachary Astrid Bilal
Cedric""".split()
)

KIN = tuple(
    """cat dog brother sister son daughter mother father horse parrot hamster rabbit uncle aunt
cousin friend boss teacher neighbour turtle goldfish boat wife husband doctor baby grandmother
grandfather goat pony canary nephew niece car snake colleague""".split()
)

PLACES = (
    *"""garage office house cellar safe school gate shed library hotel lab bank museum kitchen
attic factory station studio warehouse gym clinic church tower barn church locker vault lobby
archive workshop theatre hospital""".split(),
    "front door",
    "back door",
)

SHOPS = tuple(
    """bakery library museum bank shop market pool cinema school office cafe gym zoo pharmacy
post restaurant bar theatre garden park clinic station supermarket gallery hotel bookshop""".split()
)

THINGS = tuple(
    """key book phone lamp bag coat ring letter knife camera map ball cup hat umbrella wallet
ticket passport glove scarf watch hammer rope bottle box pen torch ladder shovel guitar bicycle
chair table clock mirror carpet kettle radio laptop blanket pillow basket bucket spoon bowl
vase candle brush broom drum helmet jacket shirt""".split()
)

EVENTS = tuple(
    """meeting party exam concert wedding lesson match game dinner trip interview lecture show
race picnic festival class funeral course workshop rehearsal election ceremony appointment
market auction""".split()
)

TOPICS: dict[str, tuple[str, ...]] = {
    "colour": tuple("blue red green yellow black white orange purple brown grey pink".split()),
    "animal": tuple("cat dog horse fox owl wolf bear lion tiger rabbit whale eagle".split()),
    "drink": tuple("tea coffee water milk juice wine beer cocoa lemonade".split()),
    "food": tuple("pizza rice soup bread pasta cheese cake fish salad curry".split()),
    "fruit": tuple("apple pear plum cherry banana mango grape peach lemon melon".split()),
    "city": tuple("Paris London Berlin Rome Madrid Vienna Oslo Lisbon Tokyo Prague".split()),
    "season": tuple("spring summer autumn winter".split()),
    "number": tuple("7 3 12 42 9 5 21 13 8 100".split()),
    "sport": tuple("tennis football chess golf rugby hockey swimming running".split()),
    "flower": tuple("rose tulip lily daisy orchid poppy iris violet".split()),
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "tree": tuple("oak pine birch maple willow cedar ash elm".split()),
    "game": tuple("chess cards poker dominoes checkers bridge".split()),
}

FOODS = (
    *"""tea coffee cake chocolate pizza cheese rice soup bread pasta apples pears honey music
books dancing swimming football chess cats dogs horses films maths poetry painting running
singing wine olives mushrooms garlic fish cherries trains stars flowers rain snow jazz opera
tennis gardening cooking hiking""".split(),
    "apple pie",
    "ice cream",
    "green tea",
)

CITIES = (
    *"""Paris London Berlin Rome Madrid Vienna Oslo Lisbon Tokyo Prague Dublin Athens Cairo
Boston Chicago Lima Delhi Seoul Moscow Warsaw Geneva Milan Zurich Hamburg Munich Toronto Sydney
Bern Lyon Porto Seville Venice Florence Glasgow Brussels Helsinki Stockholm Budapest""".split(),
    "New York",
    "San Diego",
)

JOBS = tuple(
    """baker teacher doctor nurse farmer lawyer driver cook painter pilot gardener plumber
carpenter singer writer actor engineer architect judge tailor butcher dentist librarian waiter
sailor soldier miner fisherman electrician artist programmer chemist clerk guide""".split()
)

SPOTS = (
    *"""drawer box kitchen garage garden cellar car bag cupboard office bedroom attic basket
bathroom hall shed closet safe fridge desk pocket suitcase oven barn boat cabinet chest
wardrobe bucket tent backpack""".split(),
    "living room",
    "blue box",
    "top drawer",
)

DAYS = (
    *"Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    *("3 May", "12 June", "1 March", "24 December", "9 July", "15 August", "30 April"),
)

LANGUAGES = tuple(
    """French German English Spanish Italian Russian Chinese Japanese Arabic Dutch Greek Polish
Swedish Latin Hindi Turkish Korean Danish Finnish Hungarian Portuguese Norwegian""".split()
)

GAMES = (
    *"chess tennis football golf cards rugby hockey poker basketball volleyball".split(),
    *(f"the {word}" for word in "piano violin guitar flute drums cello harp trumpet".split()),
)

PAINTED = tuple(
    """fence house bridge wall door boat tree river horse garden mountain church lake tower ship
castle sea chair moon barn village kitchen roof gate mill""".split()
)

GOODS = tuple(
    """car bicycle boat house piano dog cat horse violin farm camera motorbike guitar shop garden
telescope van hotel parrot castle yacht restaurant clock lorry bakery vineyard island orchard
umbrella accordion""".split()
)

UNITS = ("euros", "dollars", "pounds")

ADJECTIVES = tuple("old new red big small blue green black white second".split())

SYSTEMS = (
    "You answer from memory.",
    "You are a helpful assistant.",
    "You remember what you are told.",
    "Answer the questions of the user.",
    "You are a careful assistant. Answer from what you were told.",
    "Be brief.",
    "You are an agent that keeps facts.",
    "Listen and answer.",
    "You take notes and answer questions about them.",
)

# Said around facts; the words in braces are drawn from the lists above.
CHATTER = (
    "The weather is nice today.",
    "It was a long day.",
    "I saw a {kin} in the {place}.",
    "{person} and {person} went to the {place}.",
    "I was thinking about the {thing}.",
    "Somebody asked me about the {thing} today.",
    "I walked past the {place} with {person}.",
    "We talked about the {event} for an hour.",
    "{person} told me a story about a {kin}.",
    "There was a lot of noise near the {place}.",
    "I had {food} for lunch.",
    "{person} came by and said hello.",
    "It will rain later, I think.",
    "I am a little tired now.",
    "I read the news about {city} this morning.",
    "The train to {city} was late again.",
    "I met {person} on the way home.",
    "I dreamt of a {thing} and a {kin}.",
    "Let us talk about something else.",
    "This is not important at all.",
    "{person} looked at the {thing} and laughed.",
    "I cleaned the {place} before the {event}.",
    "That reminds me of {city}.",
    "I bought some {food} with {person}.",
    "Nothing else happened today.",
)

PREFIXES = (
    "Please remember that ",
    "Remember that ",
    "Remember: ",
    "Note that ",
    "By the way, ",
    "You should know that ",
    "Also, ",
)
ASIDES = ("Tell me, ", "Please tell me, ", "And ", "So, ", "One question: ", "Now, ")
CORRECTIONS = ("No, ", "Actually, ", "Correction: ", "From now on, ", "")

SMALL_TALK = {
    "Hello.": "Hello.",
    "Hi.": "Hello.",
    "Hello!": "Hello.",
    "Good morning.": "Hello.",
    "Thank you.": "You are welcome.",
    "Thanks.": "You are welcome.",
    "Thanks!": "You are welcome.",
}

# Babble is drawn from these, and the tokenizer keeps them whole.
COMMON = tuple(
    """a about after again all also always am an and any are as at away back be because been
before best better between both but by call called came can come could day did different do does
done down each end even every far few find first for found from gave get give go good got great had
has have he hear help her here high him his home how I if in into is it its just keep kind know
large last later left less let life light like likes line little live lives long look made make
man many may me mean men might mine more most much must my name near need never next night no not
nothing now number of off often on once one only open opens or other our out over own part people
place plays put ran read right said same saw say see seem set she should show side small so some
something soon still stop such take tell than that the their them then there these they thing
think this those thought three through time to today together told tomorrow too took try turn two
under until up us use very want was water way we week well went were what when where which while
white who why will with word work works world would write year yesterday years yes you young
your""".split()
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"
_VOWELS = "aeiou"
OPEN_PIECES = tuple(c + v for c in _CONSONANTS for v in _VOWELS)
_CLOSED_PIECES = tuple(v + c for v in _VOWELS for c in "bcdfgklmnprstvxz")
_TRIPLES = tuple(
    """ing ter ent ion ant and ell ill ock ack ish ash ush ard ert ist ost ust est ast ang ong ung
ink ank amp imp ump old ald eld ild ort art urt ord ber der ger her ker ler mer ner per ser ver
wer bar dar gar har kar lar mar nar par sar tar var bel del gel hel kel lel mel nel pel sel tel
vel bin din fin gin kin lin min nin pin rin sin tin vin win zin bon don fon gon kon lon mon non
pon ron son ton von zon bra dra fra gra kra pra tra bri dri fri gri kri pri tri bro dro fro gro
kro pro tro bla fla gla kla pla sla blo flo glo klo plo slo sha she shi sho cha che chi cho tha
the thi tho sta ste sti sto""".split()
)
PIECES = (*OPEN_PIECES, *_CLOSED_PIECES, *_TRIPLES)
ACCENTED = "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿœßÀÁÂÄÅÆÇÈÉÊËÍÎÑÓÔÖØÚÜŒ"
