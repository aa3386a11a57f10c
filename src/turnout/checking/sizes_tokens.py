"""Checks of the vocabulary's size, and of the ids that begin, end and pad a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.checking import sizes_padding
from turnout.checking.findings import Finding, Rule
from turnout.checking.sizes_caches import decoder_graphs, fixed, reads_tokens
from turnout.checking.subject import Subject
from turnout.checking.wiring_names import number, role, slides_inputs

VOCABULARY = Rule(
    "T226",
    "error",
    "graph",
    "`vocab_size` other than the logits'",
    why="The runtime makes a buffer for the logits by `vocab_size`. The first prompt fails where"
    " the graph gives another number: 'Got invalid dimensions for output: logits'.",
    bad='{"model": {"vocab_size": 32000}}, with logits [batch, sequence, 32064]',
    good='{"model": {"vocab_size": 32064}}',
)
DECLARED = Rule(
    "T248",
    "warning",
    "graph",
    "Logits declared in another size than they have",
    why="The graph's weights have `vocab_size` rows, and its output says otherwise. onnxruntime"
    " goes by the weights and warns in its log; whoever goes by the declaration is wrong.",
    bad="logits declared as [batch, sequence, 32001], of a head with 32000 rows",
    good="logits declared as [batch, sequence, 32000]",
)
NO_VOCABULARY = Rule(
    "T227",
    "error",
    "graph",
    "`vocab_size` is missing",
    why="No generator can be made without it: 'vocab_size must be 1 or greater'.",
    bad='{"model": {"eos_token_id": 2}}',
    good='{"model": {"vocab_size": 32000, "eos_token_id": 2}}',
)
EOS_OUTSIDE = Rule(
    "T228",
    "error",
    "graph",
    "An `eos_token_id` outside the vocabulary",
    why="The runtime refuses to make a generator: 'eos_token_id must be in range'. Without an"
    " `eos_token_id` that goes for `pad_token_id`, which then stands in for it.",
    bad='{"model": {"vocab_size": 32000, "eos_token_id": 32007}}',
    good='{"model": {"vocab_size": 32064, "eos_token_id": 32007}}',
)
ID_OUTSIDE = Rule(
    "T229",
    "warning",
    "graph",
    "A `bos_token_id` or `pad_token_id` outside the vocabulary",
    why="Nothing refuses it. Batches of prompts of unequal length are filled up with the pad id,"
    " and fail in the embeddings or read beyond them.",
    bad='{"model": {"vocab_size": 32000, "pad_token_id": 32000}}',
    good='{"model": {"vocab_size": 32000, "pad_token_id": 0}}',
)
PAD_OUTSIDE = Rule(
    "T230",
    "error",
    "graph",
    "A pad id outside the vocabulary, with windows",
    why="With `sliding_window` every prompt is filled up to whole windows with the pad id, which"
    " goes through the embeddings like any token: the prompt fails ('indices element out of data"
    " bounds'), or memory behind a quantized table is read.",
    bad='{"model": {"vocab_size": 32000, "pad_token_id": 32000, "decoder": {"sliding_window":'
    ' {"window_size": 64}}}}',
    good='{"model": {"vocab_size": 32000, "pad_token_id": 31999, "decoder": {"sliding_window":'
    ' {"window_size": 64}}}}',
)
NO_EOS = Rule(
    "T231",
    "warning",
    "graph",
    "No `eos_token_id`",
    why="The runtime takes `pad_token_id` for it, or 0 where there is none either. Where the model"
    " ends its answers with another token they run on to the length limit.",
    bad='{"model": {"vocab_size": 32000}}',
    good='{"model": {"vocab_size": 32000, "eos_token_id": 2}}',
)
PAD_IN_PROMPTS = Rule(
    "T232",
    "error",
    "graph",
    "A pad id that prompts contain, with windows",
    why="With `sliding_window` the runtime takes a prompt to end at its first pad id. Tried:"
    " nothing fails, the tokens behind it are treated as padding, and the answer is nonsense.",
    bad='{"model": {"pad_token_id": 2, "decoder": {"sliding_window": {"window_size": 64}}}}, where'
    " token 2 is <|im_end|> and the chat template writes it",
    good='{"model": {"pad_token_id": 3, "decoder": {"sliding_window": {"window_size": 64}}}}, where'
    " token 3 is <reserved_0>",
)
PAD_MAYBE = Rule(
    "T233",
    "warning",
    "graph",
    "A pad id that prompts may contain, with windows",
    why="As T232, for prompts that hold the token: an ordinary word, or, where the tokenizer is not"
    " known, the token that ends an answer, as in a conversation.",
    bad='{"model": {"eos_token_id": 2, "pad_token_id": 2, "decoder": {"sliding_window":'
    ' {"window_size": 64}}}}',
    good='{"model": {"eos_token_id": 2, "pad_token_id": 3, "decoder": {"sliding_window":'
    ' {"window_size": 64}}}}, where token 3 is <reserved_0>',
)
EMBEDDINGS = Rule(
    "T247",
    "warning",
    "graph",
    "Embeddings with fewer rows than `vocab_size`",
    why="No tensor of the graph that takes the token ids has room for the whole vocabulary. Ids"
    " beyond its rows fail ('indices element out of data bounds') or read other memory.",
    bad='{"model": {"vocab_size": 32064}}, with a table of 32000 rows',
    good='{"model": {"vocab_size": 32000}}',
)
RULES = (
    VOCABULARY,
    NO_VOCABULARY,
    EOS_OUTSIDE,
    ID_OUTSIDE,
    PAD_OUTSIDE,
    NO_EOS,
    PAD_IN_PROMPTS,
    PAD_MAYBE,
    EMBEDDINGS,
    DECLARED,
)
_LOOK_UPS = frozenset({"Gather", "GatherBlockQuantized"})


def check(subject: Subject) -> Iterator[Finding]:
    """Findings about vocabulary and ids of a decoder that reads tokens."""
    if not reads_tokens(subject):
        return
    size = number(subject.config, "model", "vocab_size")
    if size is None or size < 1:
        yield NO_VOCABULARY.at(
            subject.place(("model", "vocab_size")),
            "The config does not say how many tokens there are.",
            found="nothing" if size is None else size,
            expected="the last dimension of the logits",
            fix="set model.vocab_size",
        )
    else:
        yield from _logits(subject, size)
        yield from _embeddings(subject, size)
        yield from _eos(subject, size)
        yield from _others(subject, size)
    yield from _padding(subject)


def _logits(subject: Subject, size: int) -> Iterator[Finding]:
    name = role(subject.config, "outputs", "logits")
    for stage, graph in decoder_graphs(subject):
        given = next((value for value in graph.outputs if value.name == name), None)
        columns = fixed(given, -1)
        if columns is None or columns == size:
            continue
        rows = {row for item in graph.initializers for row in item.shape}
        if size in rows and columns not in rows:
            yield DECLARED.at(
                subject.place(stage.path),
                f"{stage.filename} declares its logits in another size than its weights have.",
                found=columns,
                expected=size,
                fix="export the graph again",
            )
        else:
            yield VOCABULARY.at(
                subject.place(("model", "vocab_size")),
                f"{stage.filename} gives logits of another size than vocab_size.",
                found=size,
                expected=columns,
                fix=f"set vocab_size to {columns}",
            )


def _embeddings(subject: Subject, size: int) -> Iterator[Finding]:
    ids = role(subject.config, "inputs", "input_ids")
    for stage, graph in decoder_graphs(subject):
        takes = any(value.name == ids for value in graph.inputs)
        if not takes or graph.ep_contexts or not any(op in _LOOK_UPS for _, op in graph.ops):
            continue
        largest = max((max(item.shape, default=0) for item in graph.initializers), default=0)
        if 1 < largest < size:
            yield EMBEDDINGS.at(
                subject.place(("model", "vocab_size")),
                f"No tensor of {stage.filename} has a row for each token.",
                found=f"at most {largest} rows",
                expected=f"{size} rows, as vocab_size says",
            )


def eos_ids(subject: Subject) -> list[int]:
    """The ids of `eos_token_id`, a number or a list."""
    value = subject.config.get(("model", "eos_token_id"))
    values = value if isinstance(value, list) else [value]
    numbers = [i for i in values if isinstance(i, int | float) and not isinstance(i, bool)]
    return [int(i) for i in numbers if abs(i) < 1 << 53]


def pad_id(subject: Subject) -> int:
    """`pad_token_id`, which is 0 where there is none."""
    return number(subject.config, "model", "pad_token_id") or 0


def _eos(subject: Subject, size: int) -> Iterator[Finding]:
    ids = eos_ids(subject)
    key = "eos_token_id"
    if not ids:
        written = subject.config.get(("model", key))
        if written is None or written == []:
            ids, key = [pad_id(subject)], "pad_token_id"
            yield NO_EOS.at(
                subject.place(("model", "eos_token_id")),
                "The config names no token that ends an answer.",
                found=f"pad_token_id {ids[0]} stands in",
                fix="set eos_token_id",
            )
    wrong = [token for token in ids if not 0 <= token < size]
    if wrong:
        yield EOS_OUTSIDE.at(
            subject.place(("model", key)),
            f"{key} is outside the vocabulary.",
            found=", ".join(str(token) for token in wrong[:6]),
            expected=f"0 to {size - 1}",
        )


def _others(subject: Subject, size: int) -> Iterator[Finding]:
    for key in ("bos_token_id", "pad_token_id"):
        token = number(subject.config, "model", key)
        windowed = key == "pad_token_id" and slides_inputs(subject.config)
        # A negative id means that there is none; embeddings take one for a row from the end.
        if token is not None and (token >= size or (windowed and token < -size)):
            rule = PAD_OUTSIDE if windowed else ID_OUTSIDE
            yield rule.at(
                subject.place(("model", key)),
                f"{key} is outside the vocabulary.",
                found=token,
                expected=f"0 to {size - 1}",
            )


def _padding(subject: Subject) -> Iterator[Finding]:
    if not slides_inputs(subject.config):
        return
    token = pad_id(subject)
    found = sizes_padding.judge(subject, token, eos_ids(subject))
    if found is not None:
        written = subject.config.get(("model", "pad_token_id")) is not None
        yield (PAD_IN_PROMPTS if found.certain else PAD_MAYBE).at(
            subject.place(("model", "pad_token_id")),
            f"The runtime takes prompts to end at token {token}, {found.why}.",
            found=token if written else "nothing, which is 0",
            expected="an id that no prompt contains",
            fix="set pad_token_id to an unused or reserved token",
        )
