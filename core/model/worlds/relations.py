"""The relations of the recall worlds: ways to say, ways to ask, and one answer each.

In a wording {k} is the key, {t} a favourite's topic, {v} the value and {a} the value's
article. The key always comes before the value, and the answer repeats the key just before
the value: a small model recalls by continuing what followed the same words before.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One kind of fact and all its wordings."""

    name: str
    # The list that keys come from; "" where the speaker is the key.
    keys: str
    # The list, or the kind of number or code, that values come from.
    values: str
    says: tuple[str, ...]
    asks: tuple[str, ...]
    answer: str
    # How often it is drawn, relative to 1.
    weight: float = 1.0


def _relation(
    name: str, keys: str, values: str, says: str, asks: str, answer: str, *, weight: float = 1.0
) -> Relation:
    return Relation(name, keys, values, _wordings(says), _wordings(asks), answer, weight)


def _wordings(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))


_OTHERS = (
    _relation(
        "called",
        "kin",
        "name",
        "My {k} is called {v}.|My {k}'s name is {v}.|The name of my {k} is {v}."
        "|I have a {k} called {v}.|I have a {k} named {v}.|My {k} is named {v}.",
        "What is my {k} called?|What is the name of my {k}?|What is my {k}'s name?"
        "|How is my {k} called?|Do you remember the name of my {k}?",
        "Your {k} is called {v}.",
        weight=1.5,
    ),
    _relation(
        "code",
        "place",
        "code",
        "The code of the {k} is {v}.|The code for the {k} is {v}.|The {k} code is {v}."
        "|The {k} has the code {v}.|The code to the {k} is {v}.",
        "What is the code of the {k}?|What is the code for the {k}?|What is the {k} code?"
        "|Which code does the {k} have?|What is the code to the {k}?",
        "The code of the {k} is {v}.",
    ),
    _relation(
        "password",
        "place",
        "secret",
        "The password of the {k} is {v}.|The password for the {k} is {v}."
        "|The {k} password is {v}.|The {k} has the password {v}.",
        "What is the password of the {k}?|What is the password for the {k}?"
        "|What is the {k} password?|Which password does the {k} have?",
        "The password of the {k} is {v}.",
    ),
    _relation(
        "likes",
        "person",
        "food",
        "{k} likes {v}.|{k} really likes {v}.|{k} is fond of {v}.|{k} loves {v}."
        "|What {k} likes is {v}.",
        "What does {k} like?|What is it that {k} likes?|Do you know what {k} likes?"
        "|What does {k} love?|What is {k} fond of?",
        "{k} likes {v}.",
    ),
    _relation(
        "lives",
        "person",
        "city",
        "{k} lives in {v}.|{k}'s home is in {v}.|{k} has a home in {v}.|{k} moved to {v}."
        "|The home of {k} is in {v}.",
        "Where does {k} live?|In which city does {k} live?|Which city does {k} live in?"
        "|What city does {k} live in?|Where is {k}'s home?",
        "{k} lives in {v}.",
    ),
    _relation(
        "works",
        "person",
        "job",
        "{k} works as {a} {v}.|{k} is {a} {v}.|{k} has a job as {a} {v}."
        "|{k} earns money as {a} {v}.",
        "What does {k} work as?|What is {k}'s job?|What is the job of {k}?"
        "|What does {k} do for work?|What does {k} do for a living?",
        "{k} works as {a} {v}.",
    ),
    _relation(
        "place",
        "thing",
        "spot",
        "The {k} is in the {v}.|The {k} lies in the {v}.|You can find the {k} in the {v}."
        "|I put the {k} in the {v}.|I left the {k} in the {v}.|The {k} is kept in the {v}.",
        "Where is the {k}?|Where can I find the {k}?|Where did I put the {k}?"
        "|Where do I find the {k}?|Where did I leave the {k}?",
        "The {k} is in the {v}.",
    ),
    _relation(
        "age",
        "person",
        "age",
        "{k} is {v} years old.|{k}'s age is {v}.|The age of {k} is {v}.|{k} is {v}."
        "|{k} turned {v} this year.",
        "How old is {k}?|What is {k}'s age?|What is the age of {k}?|What age is {k}?",
        "{k} is {v} years old.",
    ),
    _relation(
        "favourite",
        "person",
        "topic",
        "{k}'s favourite {t} is {v}.|The favourite {t} of {k} is {v}."
        "|The {t} that {k} likes best is {v}.|The {t} {k} likes best is {v}.",
        "What is {k}'s favourite {t}?|What is the favourite {t} of {k}?"
        "|Which {t} does {k} like best?|Which {t} is {k}'s favourite?",
        "{k}'s favourite {t} is {v}.",
        weight=1.5,
    ),
    _relation(
        "my favourite",
        "",
        "topic",
        "My favourite {t} is {v}.|The {t} I like best is {v}.|The {t} I like most is {v}."
        "|My favourite {t} has always been {v}.",
        "What is my favourite {t}?|Which {t} do I like best?|Which {t} is my favourite?"
        "|Which {t} do I like most?",
        "Your favourite {t} is {v}.",
    ),
    _relation(
        "my name",
        "",
        "name",
        "My name is {v}.|I am called {v}.|I am {v}.|You can call me {v}.|I'm {v}.|Call me {v}.",
        "What is my name?|What am I called?|Who am I?|Do you remember my name?|What's my name?",
        "Your name is {v}.",
        weight=0.7,
    ),
    _relation(
        "your name",
        "",
        "name",
        "Your name is {v}.|You are called {v}.|I will call you {v}.|You are {v}.",
        "What is your name?|What are you called?|Who are you?|What's your name?",
        "My name is {v}.",
        weight=0.7,
    ),
    _relation(
        "opens",
        "shop",
        "time",
        "The {k} opens at {v}.|The {k} is open from {v}.|The {k} opens its doors at {v}."
        "|The opening time of the {k} is {v}.",
        "When does the {k} open?|At what time does the {k} open?|What time does the {k} open?"
        "|What is the opening time of the {k}?",
        "The {k} opens at {v}.",
    ),
    _relation(
        "day",
        "event",
        "day",
        "The {k} is on {v}.|The {k} takes place on {v}.|The {k} will be on {v}."
        "|We have the {k} on {v}.|The day of the {k} is {v}.",
        "When is the {k}?|On which day is the {k}?|What day is the {k}?|Which day is the {k}?"
        "|When does the {k} take place?",
        "The {k} is on {v}.",
    ),
    _relation(
        "speaks",
        "person",
        "language",
        "{k} speaks {v}.|{k} can speak {v}.|The language of {k} is {v}.|{k}'s language is {v}."
        "|The language {k} speaks is {v}.",
        "What does {k} speak?|Which language does {k} speak?|What language does {k} speak?"
        "|What is {k}'s language?|What is the language of {k}?",
        "{k} speaks {v}.",
        weight=1.3,
    ),
    _relation(
        "plays",
        "person",
        "game",
        "{k} plays {v}.|{k} can play {v}.|{k} often plays {v}.|What {k} plays is {v}.",
        "What does {k} play?|What can {k} play?|What is it that {k} plays?"
        "|Do you know what {k} plays?",
        "{k} plays {v}.",
    ),
    _relation(
        "painted",
        "person",
        "painted",
        "{k} painted the {v}.|{k} has painted the {v}.|What {k} painted is the {v}."
        "|{k} once painted the {v}.",
        "What did {k} paint?|What has {k} painted?|What is it that {k} painted?"
        "|Do you know what {k} painted?",
        "{k} painted the {v}.",
    ),
    _relation(
        "costs",
        "thing",
        "price",
        "The {k} costs {v}.|The price of the {k} is {v}.|The {k} has a price of {v}."
        "|The {k} is sold for {v}.|The {k} cost {v}.",
        "How much does the {k} cost?|What does the {k} cost?|What is the price of the {k}?"
        "|How much is the {k}?|How much did the {k} cost?",
        "The {k} costs {v}.",
    ),
    _relation(
        "owns",
        "person",
        "goods",
        "{k} owns {a} {v}.|{k} has {a} {v}.|{k} is the owner of {a} {v}.|{k} bought {a} {v}.",
        "What does {k} own?|What does {k} have?|What is {k} the owner of?|What did {k} buy?",
        "{k} owns {a} {v}.",
    ),
)

_OWN = (
    ("I like", "food", "I like {v}.|I really like {v}.|I love {v}.",
     "What do I like?|Do you know what I like?|What do I love?", "You like {v}."),
    ("I live", "city", "I live in {v}.|My home is in {v}.|I moved to {v}.",
     "Where do I live?|Which city do I live in?|Where is my home?", "You live in {v}."),
    ("I work", "job", "I work as {a} {v}.|I am {a} {v}.",
     "What do I work as?|What is my job?|What do I do for work?", "You work as {a} {v}."),
    ("I am old", "age", "I am {v} years old.|My age is {v}.",
     "How old am I?|What is my age?", "You are {v} years old."),
    ("I speak", "language", "I speak {v}.|My language is {v}.",
     "What do I speak?|Which language do I speak?|What is my language?", "You speak {v}."),
    ("I play", "game", "I play {v}.|I can play {v}.",
     "What do I play?|What can I play?", "You play {v}."),
    ("I own", "goods", "I own {a} {v}.|I bought {a} {v}.",
     "What do I own?|What did I buy?", "You own {a} {v}."),
)  # fmt: skip

# The same again, said by the user about the user, and drawn less often.
RELATIONS = (
    *_OTHERS,
    *(
        _relation(name, "", values, says, asks, answer, weight=0.3)
        for name, values, says, asks, answer in _OWN
    ),
)
