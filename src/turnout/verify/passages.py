"""What routes are asked where nobody says otherwise: short prompts of several kinds, and a text."""

from __future__ import annotations

PROMPTS = (
    "What is the capital of Norway, and which sea lies to its south?",
    "Explain in two sentences why the sky is blue at noon and red in the evening.",
    "Write a Python function that returns the largest even number of a list, or None.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take?",
    "Translate into French: The bridge is closed until the storm has passed.",
    "List four things that one should check before a long ride on a bicycle.",
    "Begin a story about a lighthouse keeper who finds a letter in a bottle.",
    "Which is heavier, a kilogram of feathers or a pound of lead? Give the reason.",
)

TEXT = """\
The signal box at the junction was built in the year in which the second track was laid, and for \
sixty years nobody thought of replacing it. It stood on iron legs above the line, so that the man \
inside could see both platforms, the goods yard behind the mill, and the long curve where the \
trains from the coast came out of the cutting. Forty-two levers stood in a row along the front \
window. Each was painted by what it did: red for the signals, black for the points, blue for the \
bolts that held the points while a train passed over them, and white for those that were no longer \
connected to anything at all. A lever could only be pulled if the others allowed it. Below the \
floor, in a frame as long as the room, steel bars slid past one another, and notches in the bars \
decided what was possible. Whoever tried to clear a signal for a line that was not set would find \
that the lever did not move, and no strength would help him.

Apprentices were told to learn the frame by heart before they touched it. They drew it on paper, \
bar by bar, and then worked out what would follow from each movement. If lever nine is reversed, \
then twelve is locked, because both would send a train onto the same piece of track. If twelve is \
locked, then the distant signal has to stay at caution, and the driver of the evening express will \
begin to brake a kilometre before the station. It took most of them about three months. After that \
they no longer saw forty-two levers but a few dozen routes, each with a beginning, an end, and a \
list of things that had to be true before it could be used.

When the line was electrified, engineers came to measure the building. They found that the frame \
had never failed in a dangerous way. It had been stiff in winter; twice a wire had broken, and the \
signal at its other end had fallen to danger by its own weight, as it was meant to. They replaced \
it all the same, since a computer in the city could now set the routes of the whole valley, and \
needed neither coal for a stove nor a man who lived within sight of the track. What the computer \
did was written down in tables, however, and the tables had been copied from the drawings of the \
apprentices. A rule such as "nine locks twelve" became a line of text. The program read the lines \
one after another, and refused any command that broke one of them.

The levers are in a museum today. Children may pull them, and a small model train shows what \
happens. Most of them try to make it crash. They pull everything at once, lean on the handles, \
and ask why it does not work. The guide, who is one of the last apprentices, answers that it does \
work: what they feel in their hands is the frame, saying no.
"""
