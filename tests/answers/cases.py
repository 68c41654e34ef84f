"""Own cases by kind: (gold, answer, whether it is right). Written by hand from the conventions in docs/answers.md."""

RIGHT, WRONG = True, False

ANSWERS: dict[str, list[tuple[str, str, bool]]] = {
    "integer": [
        ("7", "07", RIGHT), ("7", "7.0", RIGHT), ("7", "+7", RIGHT), ("-7", "−7", RIGHT), ("7", "-7", WRONG),
        ("12", "3*4", RIGHT), ("12", "2+2*5", RIGHT), ("1", "17 mod 4", RIGHT), ("12", "1 2", WRONG), ("12", "21", WRONG),
        ("42", "forty-two", RIGHT), ("7", "seven", RIGHT), ("7", "eight", WRONG), ("0", "-0", RIGHT),
        ("10", "$10$.", RIGHT), ("5", "\\boxed{5}", RIGHT), ("5", "= 5", RIGHT), ("5", "5 5", WRONG),
    ],
    "decimal": [
        ("0.5", ".5", RIGHT), ("0.5", "0.50", RIGHT), ("5", "5.", RIGHT), ("0.25", "\\frac14", RIGHT),
        ("3.14", "3.1416", WRONG), ("0.1", "0.11", WRONG), ("0.3", "0.30000000000000004", RIGHT),
        ("\\frac13", "0.\\overline{3}", RIGHT), ("\\frac{1}{6}", "0.1\\overline{6}", RIGHT), ("\\frac13", "0.333", WRONG),
        ("\\frac13", "0.3333333333", RIGHT), ("2", "2.0000001", WRONG), ("1.5", "1,5", WRONG),
        ("0.\\overline{45}", "\\frac{5}{11}", RIGHT), ("\\frac{5}{11}", ".\\overline{45}", RIGHT),
    ],
    "fraction": [
        ("\\frac{1}{2}", "1/2", RIGHT), ("\\frac12", "\\frac{1}{2}", RIGHT), ("\\frac{1}{2}", "\\dfrac12", RIGHT),
        ("-\\frac{1}{2}", "\\frac{-1}{2}", RIGHT), ("-\\frac{1}{2}", "\\frac{1}{-2}", RIGHT), ("\\frac{3}{4}", "4/3", WRONG),
        ("\\frac{1}{2}", "1 / 2", RIGHT), ("\\frac{1}{2}", "\\frac{1}{2} + 0", RIGHT), ("\\frac{2}{3}", "2 \\div 3", RIGHT),
        ("\\frac{2}{3}", "{2 \\over 3}", RIGHT), ("\\frac{n}{2}", "n/2", RIGHT), ("\\frac{1}{10}", "\\frac1{10}", RIGHT),
        ("1", "\\frac{0}{0}", WRONG), ("0", "\\frac{1}{0}", WRONG), ("\\frac{22}{7}", "\\pi", WRONG),
    ],
    "mixed_number": [
        ("2\\frac{1}{2}", "2.5", RIGHT), ("2\\frac12", "5/2", RIGHT), ("2 1/2", "\\frac52", RIGHT),
        ("-1\\frac{1}{2}", "-1.5", RIGHT), ("-1\\frac{1}{2}", "-0.5", WRONG), ("2\\frac{1}{2}", "1", WRONG),
        ("3\\frac{1}{3}", "3 1/3", RIGHT), ("2\\frac{1}{2}", "2 \\frac{1}{2}", RIGHT), ("3\\tfrac{3}{4}", "3¾", RIGHT),
        ("5\\frac{1}{2}", "51/2", WRONG), ("1 1/2", "11/2", WRONG),
    ],
    "thousands": [
        ("1234567", "1,234,567", RIGHT), ("1{,}234", "1234", RIGHT), ("12\\,345", "12345", RIGHT), ("10 000", "10000", RIGHT),
        ("123", "1,23", WRONG), ("1234", "1,23,4", WRONG), ("1,000", "1000.0", RIGHT), ("1,000", "1", WRONG),
        ("-12,345", "-12345", RIGHT), ("12,345.67", "12345.67", RIGHT), ("1234", "(1,234)", WRONG), ("1,\\!000", "1,000", RIGHT),
    ],
    "currency": [
        ("\\$5", "5", RIGHT), ("5", "£5", RIGHT), ("12.50", "\\$12.5", RIGHT), ("\\$12.50", "12.50 dollars", RIGHT),
        ("\\$2,500", "2500 USD", RIGHT), ("3 million", "3,000,000", RIGHT), ("\\$1.5 billion", "1500000000", RIGHT),
        ("5", "\\text{\\$}5", RIGHT), ("₹500", "500 rupees", RIGHT), ("\\$5", "6 dollars", WRONG), ("5", "USD 5", RIGHT),
        ("-\\$5", "-5", RIGHT), ("2 million", "2", WRONG), ("5", "$5.00", RIGHT), ("20", "\\$2.0", WRONG),
    ],
    "units": [
        ("5", "5\\text{ km}", RIGHT), ("5\\text{ m}", "5", RIGHT), ("5", "5 \\mathrm{~m}", RIGHT), ("5 cm", "5 cm", RIGHT),
        ("9.8", "9.8 \\text{ m/s}^2", RIGHT), ("60", "60 \\text{ miles per hour}", RIGHT), ("3", "3 hours", RIGHT),
        ("12", "12 \\text{ sq. units}", RIGHT), ("15", "15 ml", RIGHT), ("5", "6 km", WRONG), ("2", "2 feet", RIGHT),
        ("30", "30\\text{ cm}^3", RIGHT), ("4\\sqrt{2} \\text{ inches}", "4\\sqrt{2}", RIGHT), ("7", "7 students", RIGHT),
        ("7\\text{ pounds}", "7 lbs", RIGHT), ("48\\pi \\text{ cm}^2", "48\\pi", RIGHT), ("5x", "5", WRONG),
        ("12", "12 \\text{ ways}", RIGHT), ("25", "25 kg", RIGHT), ("3", "3\\text{rd}", RIGHT),
    ],
    "percent": [
        ("50\\%", "50%", RIGHT), ("50\\%", "0.5", RIGHT), ("50\\%", "50", RIGHT), ("50\\%", "\\frac{1}{2}", RIGHT), ("50\\%", "5%", WRONG),
        ("0.25", "25\\%", RIGHT), ("\\frac{1}{4}", "25%", RIGHT), ("25%", "25 \\text{ percent}", RIGHT), ("50\\%", "500", WRONG),
        ("\\frac{100}{3}\\%", "\\frac{1}{3}", RIGHT), ("-20\\%", "-20", RIGHT), ("20\\%", "-20\\%", WRONG), ("33\\frac{1}{3}\\%", "33\\frac13%", RIGHT),
    ],
    "scientific": [
        ("3 \\times 10^{8}", "300000000", RIGHT), ("3\\times10^8", "3*10^8", RIGHT), ("1.6 \\times 10^{-19}", "1.6e-19", RIGHT),
        ("1.6 \\times 10^{-19}", "1.6e-18", WRONG), ("2.5e3", "2500", RIGHT), ("10^{-3}", "0.001", RIGHT), ("10^6", "1000000", RIGHT),
        ("1e3", "1000", RIGHT), ("5 \\cdot 10^{5}", "500,000", RIGHT), ("6.02 \\times 10^{23}", "6.02 × 10²³", RIGHT),
    ],
    "surd": [
        ("\\sqrt{12}", "2\\sqrt3", RIGHT), ("\\sqrt{2}/2", "\\frac{1}{\\sqrt{2}}", RIGHT), ("\\sqrt[3]{-8}", "-2", RIGHT),
        ("2\\sqrt{2}", "\\sqrt{8}", RIGHT), ("2\\sqrt{2}", "2sqrt(2)", RIGHT), ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt{6}}", RIGHT),
        ("\\sqrt{2}", "1.414", WRONG), ("\\sqrt{2}", "2^{1/2}", RIGHT), ("\\sqrt{2}", "2^{0.5}", RIGHT), ("3\\sqrt{5}", "5\\sqrt{3}", WRONG),
        ("\\sqrt[4]{16}", "2", RIGHT), ("\\sqrt{50}", "5√2", RIGHT), ("\\sqrt{x^2}", "x", WRONG), ("\\sqrt{3}", "-\\sqrt{3}", WRONG),
    ],
    "pi": [
        ("2\\pi", "2*pi", RIGHT), ("2\\pi", "6.283185307", RIGHT), ("2\\pi", "6.28", WRONG), ("\\frac{\\pi}{4}", "pi/4", RIGHT),
        ("\\pi", "π", RIGHT), ("100\\pi", "100\\pi \\text{ cm}^2", RIGHT), ("\\pi", "3", WRONG), ("\\frac{4}{3}\\pi", "\\frac{4\\pi}{3}", RIGHT),
    ],
    "complex": [
        ("2+3i", "3i+2", RIGHT), ("i", "-i", WRONG), ("(1+i)^2", "2i", RIGHT), ("\\frac{1}{2}+\\frac{\\sqrt{3}}{2}i", "e^{i\\pi/3}", RIGHT),
        ("4i", "4", WRONG), ("-i", "\\frac{1}{i}", RIGHT), ("2-i", "2 - 1i", RIGHT), ("1+i,1-i", "1\\pm i", RIGHT),
    ],
    "expression": [
        ("x^2+2x+1", "(x+1)^2", RIGHT), ("x^2+2x+1", "(x-1)^2", WRONG), ("2x", "x*2", RIGHT), ("\\frac{x}{2}", "0.5x", RIGHT),
        ("a+b", "a-b", WRONG), ("x^{n+1}", "x\\cdot x^n", RIGHT), ("\\frac{1}{x}", "x^{-1}", RIGHT), ("|x|", "\\sqrt{x^2}", RIGHT),
        ("ab^2", "a b^{2}", RIGHT), ("(ab)^2", "ab^2", WRONG), ("n!", "n(n-1)!", RIGHT), ("\\binom{n}{2}", "\\frac{n(n-1)}{2}", RIGHT),
        ("x_1x_2", "x_2x_1", RIGHT), ("e^{2x}", "(e^x)^2", RIGHT), ("k", "K", WRONG), ("5x", "5*x", RIGHT), ("x/y", "y/x", WRONG),
        ("-(x-1)", "1-x", RIGHT), ("\\lceil x \\rceil", "\\lceil{x}\\rceil", RIGHT), ("\\lfloor x \\rfloor", "x", WRONG),
        ("2^{n}-1", "2^n - 1", RIGHT), ("\\frac{a}{b+c}", "a/b+c", WRONG), ("3x+2y", "2y+3x", RIGHT), ("x^{10}", "x^10", RIGHT),
    ],
    "trig_log": [
        ("\\sin^2 x + \\cos^2 x", "1", RIGHT), ("\\tan x", "\\frac{\\sin x}{\\cos x}", RIGHT), ("\\sin 30^\\circ", "\\frac12", RIGHT),
        ("\\cos 60^{\\circ}", "0.5", RIGHT), ("\\ln 4", "2\\ln 2", RIGHT), ("\\log_2 8", "3", RIGHT), ("\\log_{10} 100", "2", RIGHT),
        ("\\ln(2)", "\\ln 3", WRONG), ("e^{\\ln 5}", "5", RIGHT), ("\\arctan 1", "\\pi/4", RIGHT), ("\\sin(2x)", "2\\sin x\\cos x", RIGHT),
        ("\\sec x", "1/\\cos x", RIGHT), ("\\log_3 2", "\\frac{\\ln 2}{\\ln 3}", RIGHT), ("\\sin x", "\\cos x", WRONG),
        ("\\arcsin \\frac12", "\\frac{\\pi}{6}", RIGHT), ("\\cosh x", "\\frac{e^x+e^{-x}}{2}", RIGHT), ("\\log 2", "0.301", WRONG),
    ],
    "big_number": [
        ("2^{100}", "1267650600228229401496703205376", RIGHT), ("2^{100}", "1267650600228229401496703205377", WRONG),
        ("20!", "2432902008176640000", RIGHT), ("\\frac{100!}{98!}", "9900", RIGHT), ("\\binom{52}{5}", "2598960", RIGHT),
        ("10^{100}", "10^{101}", WRONG), ("\\frac{1}{1500!}", "\\frac{1}{1501!}", WRONG), ("3^{1000}-1", "3^{1000}", WRONG),
        ("7!!", "105", RIGHT), ("\\sum_{k=1}^{100} k", "5050", RIGHT), ("\\prod_{k=1}^{5} k", "120", RIGHT), ("2^{2^5}", "2^{32}", RIGHT),
    ],
    "degrees": [
        ("45^\\circ", "45", RIGHT), ("45", "45°", RIGHT), ("45^{\\circ}", "45 degrees", RIGHT), ("45^\\circ", "54^\\circ", WRONG),
        ("\\angle ABC = 30^\\circ", "30", RIGHT), ("120°", "120^\\circ", RIGHT), ("22.5^\\circ", "22\\frac12^\\circ", RIGHT),
        ("98.6", "98.6°F", RIGHT),
    ],
    "assignment": [
        ("x=3", "3", RIGHT), ("3", "x = 3", RIGHT), ("x=3", "x=4", WRONG), ("x+1", "f(x) = x+1", RIGHT), ("10", "n = 10", RIGHT),
        ("S_{ABC}=6", "6", RIGHT), ("AB = 5", "5", RIGHT), ("f(2) = 5", "5", RIGHT), ("f^{-1}(x) = x/2", "x/2", RIGHT),
        ("5", "x = 2+3 = 5", RIGHT), ("5", "2+3 = 6", WRONG), ("x = \\frac{1}{2}", "0.5", RIGHT), ("3", "3 = x", RIGHT),
        ("a_n = 2^n", "2^n", RIGHT), ("x=3", "y=3", WRONG), ("P(x) = x^2", "x^2", RIGHT), ("12", "\\text{Area} = 12", RIGHT),
        ("\\theta = \\frac{\\pi}{6}", "\\pi/6", RIGHT), ("2", "x", WRONG),
    ],
    "equation": [
        ("y = 2x + 1", "2x - y + 1 = 0", RIGHT), ("x^2 + y^2 = 4", "x^2 + y^2 - 4 = 0", RIGHT), ("x+y=1", "2x+2y=2", RIGHT),
        ("x+y=1", "x-y=1", WRONG), ("x+y=1", "x+y", WRONG), ("y=2x", "y=x/2", WRONG), ("3x - 4y = 12", "4y = 3x - 12", RIGHT),
        ("\\frac{x}{3}+\\frac{y}{4}=1", "4x+3y=12", RIGHT), ("y = x^2", "x = y^2", WRONG), ("x + y = 1", "1", WRONG),
    ],
    "inequality": [
        ("x > 2", "2 < x", RIGHT), ("x>2", "(2, \\infty)", RIGHT), ("x \\ge 2", "x > 2", WRONG), ("x>2", "x<2", WRONG),
        ("-1 < x < 3", "(-1,3)", RIGHT), ("x \\leq -3 \\text{ or } x \\geq 3", "(-\\infty,-3]\\cup[3,\\infty)", RIGHT),
        ("x > 2", "3x > 6", RIGHT), ("x<-1 \\text{ or } x>1", "x>1 \\text{ or } x<-1", RIGHT), ("x > 2", "2", WRONG), ("2x+1 \\ge 5", "x \\ge 2", RIGHT),
        ("x \\neq 1", "x ≠ 1", RIGHT), ("x \\neq 1", "(-\\infty,1)\\cup(1,\\infty)", RIGHT), ("x>2", "y>2", WRONG), ("a<b<c", "c>b>a", RIGHT),
        ("1 \\le x \\le 5", "5 \\ge x \\ge 1", RIGHT), ("x^2 < 4", "x^2 < 5", WRONG), ("x+y \\le 3", "x+y-3 \\le 0", RIGHT),
    ],
    "interval": [
        ("(1,2)", "(1, 2)", RIGHT), ("[1,2]", "(1,2)", WRONG), ("[0,\\infty)", "x \\geq 0", RIGHT), ("(-\\infty,3)", "(-inf, 3)", RIGHT),
        ("(1,2)\\cup(3,4)", "(3,4)\\cup(1,2)", RIGHT), ("(1,2)\\cup(2,3)", "(1,3)", WRONG), ("(1,2]\\cup[2,3)", "(1,3)", RIGHT),
        ("\\mathbb{R} \\setminus \\{0\\}", "(-\\infty,0)\\cup(0,\\infty)", RIGHT), ("[1,2]", "1 \\le x \\le 2", RIGHT), ("x \\in [1,2]", "[1,2]", RIGHT),
        ("[1,4]", "[1,4)", WRONG), ("(0,1)", "[0,1]", WRONG), ("\\left(\\frac12, 3\\right]", "(0.5, 3]", RIGHT), ("(-2,\\infty)", "(-2,+\\infty)", RIGHT),
        ("\\{x \\mid x > 3\\}", "(3,\\infty)", RIGHT), ("(a,b)", "a < x < b", RIGHT), ("[\\sqrt{2}, 2]", "[2^{1/2}, 2]", RIGHT),
    ],
    "list": [
        ("1,2", "2,1", RIGHT), ("1, 2", "1 and 2", RIGHT), ("1,2,3", "1,2", WRONG), ("1,2", "1,2,3", WRONG), ("x=1 \\text{ or } x=2", "1,2", RIGHT),
        ("1 \\text{ or } 2", "x = 1, 2", RIGHT), ("5", "5 or 6", WRONG), ("5", "5, 6", WRONG), ("1, -1", "\\pm 1", RIGHT),
        ("\\sqrt{2}, -\\sqrt{2}", "\\pm\\sqrt{2}", RIGHT), ("2, 3", "2; 3", RIGHT), ("2,3,5", "\\{2, 3, 5\\}", RIGHT), ("1,1,2", "1,2", WRONG),
        ("a, b", "b, a", RIGHT), ("3, 4", "(3, 4)", WRONG), ("1, 2, and 3", "3, 2, 1", RIGHT), ("2,3", "23", WRONG),
    ],
    "set": [
        ("\\{1,2\\}", "\\{2,1\\}", RIGHT), ("\\{1,2\\}", "{1,2}", RIGHT), ("\\{1,2\\}", "\\{1,2,3\\}", WRONG), ("\\emptyset", "\\{\\}", RIGHT),
        ("\\{1,2\\}\\cup\\{3\\}", "\\{1,2,3\\}", RIGHT), ("\\{\\frac12\\}", "\\{0.5\\}", RIGHT), ("\\{a,b\\}", "\\{b,a\\}", RIGHT), ("\\emptyset", "\\{0\\}", WRONG),
    ],
    "tuple": [
        ("(1,2)", "(2,1)", WRONG), ("(1,2,3)", "( 1, 2, 3 )", RIGHT), ("(1,2)", "(1,2,3)", WRONG), ("(x,y)=(1,2)", "(1,2)", RIGHT),
        ("(1,2)", "x=1,y=2", RIGHT), ("(1,2)", "x=2, y=1", WRONG), ("(0.5, 1)", "(\\frac12, 1)", RIGHT), ("(1,2),(3,4)", "(3,4),(1,2)", RIGHT),
        ("(1,2)", "[1,2]", WRONG), ("(1,2)", "1,2", WRONG), ("(1, 2, 3)", "\\langle 1, 2, 3 \\rangle", RIGHT), ("(3, -1)", "(3; -1)", RIGHT),
        ("P(1,2)", "(1,2)", RIGHT),
    ],
    "matrix": [
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", RIGHT),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", WRONG),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)", RIGHT), ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}", WRONG),
        ("\\begin{pmatrix}1/2\\\\2\\end{pmatrix}", "\\begin{pmatrix}0.5\\\\2\\end{pmatrix}", RIGHT),
        ("\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "-2", RIGHT), ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&2&3\\end{pmatrix}", WRONG),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "3", WRONG), ("\\begin{bmatrix} a \\\\[2pt] b \\end{bmatrix}", "\\begin{pmatrix} a \\\\ b \\end{pmatrix}", RIGHT),
    ],
    "ratio": [
        ("3:4", "3 : 4", RIGHT), ("3:4", "4:3", WRONG), ("3:4", "\\frac{3}{4}", RIGHT), ("1:2:3", "1:2:3", RIGHT), ("1:2:3", "3:2:1", WRONG),
        ("3:4", "3 to 4", RIGHT), ("\\sqrt{2}:1", "\\sqrt2 : 1", RIGHT), ("3:4", "0.75", RIGHT), ("3:4", "34", WRONG),
    ],
    "time": [
        ("3:30 PM", "15:30", RIGHT), ("3:30 PM", "3:30 p.m.", RIGHT), ("3:30 PM", "3:30 AM", WRONG), ("12:05 AM", "00:05", RIGHT),
        ("9:00", "9:00", RIGHT), ("9:00 a.m.", "9 AM", RIGHT), ("9:15", "9:51", WRONG), ("\\text{4:30 PM}", "4:30\\text{ pm}", RIGHT), ("12:00 PM", "12:00", RIGHT),
    ],
    "base": [
        ("101_2", "101_{2}", RIGHT), ("101_2", "101", RIGHT), ("101_2", "5", WRONG), ("101_2", "101_3", WRONG), ("1A_{16}", "1A_{16}", RIGHT),
        ("1A_{16}", "1a_{16}", RIGHT), ("12_5", "(12)_5", RIGHT), ("12_5", "12_{\\text{five}}", RIGHT), ("12_5", "13_5", WRONG), ("101_2", "101_{\\text{two}}", RIGHT),
        ("1210_3", "1210 \\text{ (base 3)}", RIGHT),
    ],
    "choice": [
        ("B", "(B)", RIGHT), ("B", "B.", RIGHT), ("B", "B) 5", RIGHT), ("B", "(B) 5", RIGHT), ("B", "\\text{B}", RIGHT), ("B", "(A)", WRONG),
        ("(B)", "B", RIGHT), ("B", "A and B", WRONG), ("B", "A, B", WRONG), ("\\textbf{(B)}", "B", RIGHT), ("B", "**B**", RIGHT), ("B", "b", RIGHT),
        ("B", "B or C", WRONG), ("B", "(B) or (C)", WRONG), ("B", "Option B", RIGHT), ("\\text{(B)}", "\\mathrm{(B)}", RIGHT), ("A", "A, C", WRONG), ("B", "Bob", WRONG),
        ("B", "B: the second", RIGHT), ("A, C", "C, A", RIGHT), ("A, C", "A", WRONG), ("\\textbf{(B)}\\ 12", "B", RIGHT),
    ],
    "text": [
        ("\\text{Monday}", "monday", RIGHT), ("\\text{Monday}", "Tuesday", WRONG), ("yes", "Yes.", RIGHT), ("yes", "no", WRONG),
        ("\\text{a square}", "square", RIGHT), ("parallelogram", "\\textit{parallelogram}", RIGHT), ("\\text{odd}", "even", WRONG),
        ("\\text{red}", "\"red\"", RIGHT), ("\\text{Alice}", "Bob", WRONG), ("\\text{East}", "\\text{east}", RIGHT), ("5", "five apples", WRONG),
        ("\\text{no solution}", "No solutions", RIGHT), ("True", "true", RIGHT), ("\\text{Navin}", "\\text{Navi}", WRONG),
    ],
    "infinity": [
        ("\\infty", "inf", RIGHT), ("-\\infty", "-\\infty", RIGHT), ("\\infty", "0", WRONG), ("\\infty", "∞", RIGHT), ("\\infty", "10^{10}", WRONG),
    ],
    "unicode": [
        ("\\frac{1}{4}", "¼", RIGHT), ("2\\sqrt{3}", "2√3", RIGHT), ("x^2", "x²", RIGHT), ("x_1", "x₁", RIGHT), ("\\pi r^2", "πr²", RIGHT),
        ("\\alpha", "α", RIGHT), ("12", "１２", RIGHT), ("x \\le 3", "x ≤ 3", RIGHT), ("\\pm 2", "±2", RIGHT), ("2 \\times 3", "2 × 3", RIGHT),
        ("-5", "–5", RIGHT), ("\\frac{3}{4}", "3⁄4", RIGHT), ("1,2", "1，2", RIGHT), ("(1,2)", "（1，2）", RIGHT), ("\\{1\\} \\cup \\{2\\}", "{1} ∪ {2}", RIGHT),
    ],
    "latex_style": [
        ("5", "\\mathbf{5}", RIGHT), ("5", "\\left( 5 \\right)", RIGHT), ("\\frac{1}{2}", "\\displaystyle\\frac{1}{2}", RIGHT), ("5", "{5}", RIGHT),
        ("5", "\\;5\\;", RIGHT), ("5", "$$5$$", RIGHT), ("5", "\\color{blue}{5}", RIGHT), ("5", "\\large 5", RIGHT), ("2x", "2\\,x", RIGHT), ("5", "5 \\quad", RIGHT),
        ("\\frac{1}{2}", "\\frac{1}{2}.", RIGHT), ("5", "\\text{5}", RIGHT), ("3", "\\underline{3}", RIGHT), ("\\sqrt{2}", "\\sqrt 2", RIGHT),
        ("5", "\\[5\\]", RIGHT), ("(3,4)", "\\big(3,4\\big)", RIGHT), ("3", "\\mathrm{3}", RIGHT), ("5", "*5*", RIGHT), ("5", "_5_", RIGHT),
    ],
    "calculus": [
        ("\\int_0^1 x\\,dx", "\\frac12", RIGHT), ("\\lim_{x\\to 0} \\frac{\\sin x}{x}", "1", RIGHT), ("\\sum_{n=1}^{\\infty} \\frac{1}{2^n}", "1", RIGHT),
        ("\\int_0^1 x\\,dx", "1", WRONG), ("\\sum_{n=1}^{\\infty} \\frac{1}{n^2}", "\\frac{\\pi^2}{6}", RIGHT), ("\\int_0^{\\pi} \\sin x \\, dx", "2", RIGHT),
    ],
    "extra_words": [
        ("12", "about 12", RIGHT), ("12", "exactly 12", RIGHT), ("12", "there are 12 of them", RIGHT), ("12", "not 12", WRONG), ("12", "12 is wrong", WRONG),
        ("12", "between 10 and 12", WRONG), ("12", "12 or more", WRONG), ("12", "at least 12", WRONG), ("x=2", "x = 2 is the solution", RIGHT), ("12", "more than 12", WRONG),
        ("12", "the answer is 12", RIGHT), ("12", "Answer: 12", RIGHT), ("12", "It is 12", RIGHT),
    ],
    "hack": [
        ("5", "\\text{correct}", WRONG), ("5", "x", WRONG), ("5", "5 = 6", WRONG), ("5", "[5,5]", WRONG), ("5", "1,2,3,4,5", WRONG), ("5", "\\pm 5", WRONG),
        ("5", "x \\in \\mathbb{R}", WRONG), ("5", "\\infty", WRONG), ("x^2", "f(x)", WRONG), ("5", "gold", WRONG), ("0", "\\emptyset", WRONG), ("5", "5 \\text{ or } x", WRONG),
    ],
    "empty": [("5", "", WRONG), ("", "5", WRONG), ("", "", WRONG), ("5", "\\boxed{}", WRONG), ("5", "   ", WRONG), ("5", "$$", WRONG)],
}  # fmt: skip

SOLUTIONS: dict[str, list[tuple[str, str, bool]]] = {
    "box": [
        ("5", "so $\\boxed{5}$.", RIGHT), ("5", "\\boxed{4} no, \\boxed{5}", RIGHT), ("4", "\\boxed{4} no, \\boxed{5}", WRONG), ("1,2", "\\boxed{1} and \\boxed{2}", RIGHT),
        ("1,2", "\\boxed{1}, \\boxed{2}", RIGHT), ("5", "\\boxed{5", WRONG), ("\\frac{1}{2}", "\\boxed{\\frac{1}{2}}", RIGHT), ("5", "\\boxed{\\text{5}}", RIGHT),
        ("5", "\\fbox{5}", RIGHT), ("5", "\\boxed{x=5}", RIGHT), ("\\{1,2\\}", "\\boxed{\\{1,2\\}}", RIGHT), ("5", "\\boxed{ 5 }", RIGHT), ("5", "\\boxed{}", WRONG),
        ("5", "\\boxed{5\\text{ cm}}", RIGHT), ("5", "$x=\\boxed{5}$ cm", RIGHT), ("5", "\\boxed{\\$5}", RIGHT),
    ],
    "marker": [
        ("5", "The answer is 5.", RIGHT), ("5", "The answer is: $5$", RIGHT), ("5", "Answer: 5", RIGHT), ("5", "ANSWER: $5$.", RIGHT), ("5", "#### 5", RIGHT),
        ("5", "<answer>5</answer>", RIGHT), ("5", "**Final Answer:** 5", RIGHT), ("5", "So the final answer is **5**.", RIGHT), ("5", "Therefore, the answer is 5 apples.", RIGHT),
        ("5", "The answer is 6. But 5 is nice.", WRONG), ("\\frac{1}{2}", "The final answer is $\\frac{1}{2}$. I hope it is correct.", RIGHT),
        ("5", "Final answer: x = 5", RIGHT), ("B", "The answer is (B).", RIGHT), ("B", "Answer: B) 12", RIGHT), ("1,2", "The answers are $1$ and $2$.", RIGHT),
        ("5", "I computed 5.\nAnswer: 7", WRONG), ("(1,2)", "The answer is $(1,2)$.", RIGHT), ("3.5", "The answer is 3.5.", RIGHT), ("\\$5", "The answer is $5.", RIGHT),
        ("yes", "The answer is yes.", RIGHT), ("1,234", "The answer is 1,234.", RIGHT), ("-5", "The answer is -5", RIGHT),
    ],
    "last": [
        ("5", "We get 2+3=5.", RIGHT), ("5", "There are 5 cats.", RIGHT), ("5", "5 and 6", WRONG), ("-5", "it is -5.", RIGHT), ("1234", "In total 1,234 people.", RIGHT),
        ("0.5", "which gives $\\frac12$.", RIGHT), ("5", "So she has $5.", RIGHT), ("5", "nothing here", WRONG), ("50\\%", "It grows by 50%.", RIGHT), ("18", "2 * 9 = 18\nA: 18", RIGHT),
        ("x > 2", "Hence $x > 2$.", RIGHT), ("2", "H2O", WRONG),
    ],
    "think": [
        ("5", "<think>\\boxed{4}</think> \\boxed{5}", RIGHT), ("4", "<think>\\boxed{4}</think> \\boxed{5}", WRONG), ("5", "<think>is it 4?</think>\nThe answer is 5", RIGHT),
        ("4", "<think>4</think>\n5", WRONG),
    ],
}  # fmt: skip
