"""The rules of `checking.tokenizers`: codes T33x."""

from __future__ import annotations

from turnout.checking.findings import Rule

TOKENIZER_MISSING = Rule(
    "T330",
    "error",
    "files",
    "A tokenizer that is missing",
    why="The runtime needs `tokenizer_config.json` and `tokenizer.json` (or the file that "
    "`tiktoken_file` names). The model loads without them, and fails when the first text is to "
    "become tokens. `tokenizer.model`, `vocab.json` and `merges.txt` are not read.",
    bad="`tokenizer.model` and `tokenizer_config.json`",
    good="`tokenizer.json` and `tokenizer_config.json`",
)
TOKENIZER_BROKEN = Rule(
    "T331",
    "error",
    "files",
    "A tokenizer file that cannot be read",
    why="A tokenizer file that is no JSON, was cut short, or is a pointer of Git LFS makes the "
    "runtime fail when the tokenizer is made.",
    bad="a `tokenizer.json` of 0 bytes",
    good="the `tokenizer.json` that the model was trained with",
)
NO_TEMPLATE = Rule(
    "T332",
    "info",
    "files",
    "No chat template",
    why="Without a chat template a conversation cannot be written as one text: `turnout chat` "
    "does not work, and `turnout generate` only with `--raw`, which gives the prompt as it is. "
    "Models that were not tuned for conversations have none.",
    bad="a `tokenizer_config.json` without `chat_template`, and no `chat_template.jinja`",
    good='`{"chat_template": "{% for message in messages %}...{% endfor %}"}`',
)
TEMPLATE_BROKEN = Rule(
    "T333",
    "error",
    "files",
    "A chat template that cannot be used",
    why="The template must be text, with tags that close and blocks that end, and with no other "
    "statements than those of onnxruntime-genai 0.18 (`for`, `if`, `set`, `macro`, `filter`, "
    "`generation`, `break`, `continue`): else a conversation fails with `Invalid or unsupported "
    "chat template`. What is inside expressions is not looked into. With a list of named "
    "templates, or null, in `tokenizer_config.json`, or a `chat_template.json` that is no JSON, "
    "the runtime makes no tokenizer at all; with a `chat_template.jinja` that is not UTF-8 it "
    "fails when a conversation begins.",
    bad='`{"chat_template": [{"name": "default", "template": "..."}]}`',
    good='`{"chat_template": "..."}`',
)
UNKNOWN_CLASS = Rule(
    "T334",
    "error",
    "files",
    "A tokenizer class that the runtime does not know",
    why="onnxruntime-genai 0.18 picks the tokenizer by `tokenizer_class`, and makes none of a "
    "class that it does not know (`Unsupported tokenizer class`).",
    bad='`{"tokenizer_class": "CohereTokenizerFast"}`',
    good='`{"tokenizer_class": "PreTrainedTokenizerFast"}`, where `tokenizer.json` is BPE',
)
VOCABULARY = Rule(
    "T335",
    "error",
    "files",
    "A vocabulary larger than the model's",
    why="The tokenizer makes ids that the model has no embedding for. As soon as a prompt has one "
    "the answer fails (`indices element out of data bounds`): the tokenizer is another model's, "
    "or `vocab_size` is wrong.",
    bad='{"model": {"vocab_size": 32000}} with a tokenizer whose largest id is 49151',
    good='{"model": {"vocab_size": 49152}} with a tokenizer whose largest id is 49151',
)
EOS = Rule(
    "T336",
    "warning",
    "files",
    "The tokenizer's end of text is not among those of the config",
    why="Generation ends at `eos_token_id` of the config alone. A model that ends its answers "
    "with the tokenizer's `eos_token` then goes on until `max_length`.",
    bad='{"model": {"eos_token_id": 0}} with an `eos_token` whose id is 2',
    good='{"model": {"eos_token_id": [0, 2]}} with an `eos_token` whose id is 2',
)
ADDED = Rule(
    "T337",
    "warning",
    "files",
    "A few tokens outside the model's vocabulary",
    why="Tokens were added to the tokenizer, or fewer than one in a hundred of its own stand, "
    "where the model has no embedding for them. Prompts without them work, and one with such a "
    "token fails (`indices element out of data bounds`).",
    bad='{"model": {"vocab_size": 32000}} with an added token whose id is 32000',
    good='{"model": {"vocab_size": 32064}} with an added token whose id is 32000',
)
NO_CLASS = Rule(
    "T338",
    "warning",
    "files",
    "A chat template without effect, for want of a tokenizer class",
    why="Where `tokenizer_config.json` has no `tokenizer_class`, onnxruntime-genai 0.18 takes "
    "the kind of the tokenizer from `tokenizer.json`, and then finds no chat template (`Empty "
    "chat template`): conversations do not work.",
    bad='`{"chat_template": "..."}`',
    good='`{"chat_template": "...", "tokenizer_class": "PreTrainedTokenizerFast"}`',
)
VALUES = Rule(
    "T339",
    "error",
    "files",
    "A value in a tokenizer file that the runtime does not take",
    why="The runtime makes no tokenizer where a special token is a number, an id is text, merges "
    "are not texts or pairs of them, a pre-tokenizer is of an unknown type, and the like. A first "
    "merge that begins with #, or an empty one, keeps it reading for ever. Python libraries "
    "forgive much of it.",
    bad='`{"eos_token": 2}`',
    good='`{"eos_token": "</s>"}`',
)
LOOSE = Rule(
    "T340",
    "warning",
    "files",
    "A tokenizer file that is not quite JSON",
    why="onnxruntime-genai 0.18 reads `tokenizer.json` to the end of its first value, and "
    "`tokenizer_config.json` to the first zero byte and over comments. Other programs refuse them: "
    "the file was damaged, or joined with another.",
    bad="a `tokenizer.json` with other bytes behind its last brace",
    good="a `tokenizer.json` that ends with its last brace",
)

TOKENIZER_RULES = (
    TOKENIZER_MISSING,
    TOKENIZER_BROKEN,
    NO_TEMPLATE,
    TEMPLATE_BROKEN,
    UNKNOWN_CLASS,
    VOCABULARY,
    EOS,
    ADDED,
    NO_CLASS,
    VALUES,
    LOOSE,
)
