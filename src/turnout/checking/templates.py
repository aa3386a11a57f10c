"""What keeps the runtime from reading a chat template: tags that do not close, or do not match.

The tags are those that onnxruntime-genai 0.18 takes (its own reader of Jinja, not Jinja's): each
was tried by tests/test_checking_tokenizers.py. Expressions are not read, and neither is what
happens when the template is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPENING = re.compile(r"\{[{%#]")
_CLOSING = {"{{": "}}", "{%": "%}"}
_PART = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|%\}|\}|[{(\[\])'"]""", re.DOTALL)
_STATEMENT = re.compile(r"-?\s*(\w*)\s*(.*?)\s*-?", re.DOTALL)
_BLOCKS = frozenset({"filter", "for", "generation", "if", "macro", "set"})
_WORDS = _BLOCKS | {f"end{word}" for word in _BLOCKS} | {"break", "continue", "elif", "else"}
_SHOWN = 60


class _BrokenError(ValueError):
    """The template cannot be read; the text says why."""


def flaw_of(template: str) -> str | None:
    """What the runtime cannot read in a chat template, None where there is nothing."""
    open_blocks: list[list[str]] = []
    try:
        for content, line in _statements(template):
            _follow(open_blocks, content, line)
    except _BrokenError as error:
        return str(error)
    return f"{{% {open_blocks[-1][0]} %}} without its end" if open_blocks else None


def _statements(template: str) -> Iterator[tuple[str, int]]:
    at, line, counted = 0, 1, 0
    while (found := _OPENING.search(template, at)) is not None:
        line += template.count("\n", counted, found.start())
        counted = found.start()
        if found.group() == "{#":
            at = template.find("#}", found.end()) + 2
            if at < 2:
                raise _BrokenError(f"{{# without #}} in line {line}")
            continue
        at = _end(template, found.end(), found.group(), line)
        content = template[found.end() : at - 2]
        if found.group() == "{%":
            yield content, line
        elif not content.strip("- \n\t"):
            raise _BrokenError(f"an empty {{{{ }}}} in line {line}")


def _end(template: str, start: int, opening: str, line: int) -> int:
    """Where the tag ends: strings, and braces inside brackets, are passed over."""
    depth = 0
    for part in _PART.finditer(template, start):
        text = part.group()
        if text in {"'", '"'}:
            break  # a string without an end
        if text == "%}" and opening == "{%" and not depth:
            return part.end()
        if text == "}" and opening == "{{" and not depth:
            if template.startswith("}}", part.start()):
                return part.end() + 1
            break
        if text in {"{", "(", "["}:
            depth += 1
        elif text in {"}", ")", "]"}:
            depth -= 1
            if depth < 0:
                break
    raise _BrokenError(f"{opening} without {_CLOSING[opening]} in line {line}")


def _follow(open_blocks: list[list[str]], content: str, line: int) -> None:
    """Note what a statement opens, ends, or divides."""
    found = _STATEMENT.fullmatch(content)
    word, rest = found.groups() if found else ("", "")
    shown, top = f"{{% {content.strip()[:_SHOWN]} %}} in line {line}", open_blocks[-1:]
    if word not in _WORDS:
        raise _BrokenError(f"{shown}, which is unknown")
    if (word == "if" and not rest) or (word == "for" and not re.search(r"\bin\b", rest)):
        raise _BrokenError(f"{shown}, which is not whole")
    if word in _BLOCKS and not (word == "set" and "=" in rest):
        open_blocks.append([word])
    elif word in {"elif", "else"}:
        if not top or top[0][0] not in ({"if"} if word == "elif" else {"if", "for"}):
            raise _BrokenError(f"{shown} outside of a block")
        if "else" in top[0]:
            raise _BrokenError(f"{shown} behind an else")
        top[0].append(word)
    elif word.startswith("end"):
        if not top or word != f"end{top[0][0]}" or rest:
            raise _BrokenError(f"{shown}, which ends no open block")
        open_blocks.pop()
