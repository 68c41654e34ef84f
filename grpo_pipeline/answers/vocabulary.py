"""The words that may stand in an answer without changing its value."""


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


UNITS = words(
    """cm mm km dm nm um meter meters metre metres centimeter centimeters centimetre centimetres millimeter
    millimeters kilometer kilometers kilometre kilometres inch inches foot feet ft yd yard yards mile
    miles mi kg mg gram grams kilogram kilograms lb lbs pound pounds oz ounce ounces ton tons tonne
    tonnes ml mL cl dl liter liters litre litres gallon gallons quart quarts pint pints cup cups sec
    secs second seconds min mins minute minutes hr hrs hour hours day days week weeks month months year
    years yr yrs decade decades century mph kph kmh fps rpm hz Hz kHz MHz GHz pa Pa kPa joule joules kJ
    watt watts kW MW newton newtons volt volts amp amps ohm ohms mol mole moles dollar dollars buck
    bucks cent cents euro euros yuan yen rupee rupees peso pesos usd USD eur EUR gbp GBP rs Rs RMB rmb
    sq cu square cubic unit units degree degrees people person students student children child apples
    apple books book points point ways way times square per radians radian rad rads items item coins
    coin cards card balls ball hectares hectare acre acres psi atm bar celsius fahrenheit kelvin"""
)

# Units of one letter: only units where they stand beside a unit, else variables.
LETTER_UNITS = words("m s h g L l N J W K V A C")

SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "quadrillion": 10**15, "dozen": 12, "millions": 10**6, "billions": 10**9, "thousands": 10**3,
    "mil": 10**6, "bn": 10**9,
}  # fmt: skip

# Words in front of an answer that say nothing about its value. "between", "not", "at least" are not here.
FILLERS = words(
    """exactly there are is it its the a an answer equals equal to about approximately approx roughly
    around total of final so thus therefore hence we have get result value be must which that as simply
    just only only solution solutions are will was were number option choice correct or both namely i.e.
    let would can precisely obtain find roots root values where since all our desired required"""
) - {"or", "to", "both", "all", "where", "since", "that", "which"}

# Words that must never be passed over behind an answer, because they change what is claimed.
DENIALS = words(
    """not no isn't wrong incorrect false never neither nor except or than between if unless when but minus
    plus without about less more fewer greater larger smaller least most odd even mod modulo other
    squared cubed into over half halves third thirds quarter quarters fourth fourths fifth fifths tenth
    tenths hundredths reciprocal negative factorial choose"""
) - {"about"}

_UP_TO_NINETEEN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
SMALL_NUMBERS = {word: value for value, word in enumerate(_UP_TO_NINETEEN.split())}
TENS = {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
BASE_WORDS = {**SMALL_NUMBERS, "twenty": 20}

# Words of two or three letters that are no product of variables.
SHORT_WORDS = words(
    """is it no of so we as at by he if on No AM PM am pm the are all any has had have was not but for you
    its one two six ten per The All Are There it's can may now few odd out off our who why how way day
    men old new big"""
)

PERCENT_WORDS = frozenset({"percent", "pct", "percentage", "percents"})
DEGREE_WORDS = frozenset({"degree", "degrees", "deg", "degs"})
CURRENCY = "$€£¥₹₩₽¢"

FUNCTIONS = words(
    """sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth asin acos atan
    asinh acosh atanh arcsinh arccosh arctanh ln log lg exp sqrt cbrt abs floor ceil gcd lcm max min det
    arg Re Im sgn binom sign binomial factorial"""
)


def number_in_words(text: str) -> int | None:
    """The value of a whole number spelled out, None for anything else.

    >>> number_in_words("two hundred and forty-five")
    245
    """
    total = current = 0
    seen = False
    for word in text.replace("-", " ").casefold().split():
        if word == "and" and seen:
            continue
        if word in SMALL_NUMBERS:
            current += SMALL_NUMBERS[word]
        elif word in TENS:
            current += TENS[word]
        elif word == "hundred" and seen:
            current *= 100
        elif word in SCALES and seen and word != "dozen":
            total, current = total + current * SCALES[word], 0
        else:
            return None
        seen = True
    return total + current if seen else None
