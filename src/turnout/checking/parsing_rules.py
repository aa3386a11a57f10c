"""The rules of `checking.parsing`: what is said of what onnxruntime-genai's parser does."""

from __future__ import annotations

from turnout.checking.findings import Rule

SYNTAX = Rule(
    "T101",
    "error",
    "parser",
    "The config cannot be read",
    why="The runtime reads JSON without comments and trailing commas, and refuses the bundle at "
    "the first character that does not fit.",
    bad='{"model": {"type": "llama", /* tuned */ "context_length": 2048}}',
    good='{"model": {"type": "llama", "context_length": 2048}}',
)
ESCAPE = Rule(
    "T102",
    "error",
    "parser",
    "An escape by number in a string",
    why=r"JSON allows an escape \uXXXX, and tools that write only ASCII use it; this runtime "
    "refuses the bundle.",
    bad=r'{"model": {"type": "llama", "context_length": 8, "tokenizer_dir": "caf\u00e9"}}',
    good='{"model": {"type": "llama", "context_length": 8, "tokenizer_dir": "café"}}',
)
ENCODING = Rule(
    "T103",
    "error",
    "parser",
    "The text is not plain UTF-8",
    why="Editors on Windows put a byte order mark before the text, or write UTF-16; the runtime "
    "takes the mark for a value that it does not know.",
    bad="a `genai_config.json` that begins with the bytes EF BB BF",
    good="the same text saved as UTF-8 without BOM",
)
ODD = Rule(
    "T104",
    "warning",
    "parser",
    "The text is no JSON, though the runtime reads it",
    why="The runtime is laxer than the standard: it stops at the end of the document, drops a "
    "word such as `t` without a value, and takes numbers such as `08`. Turnout and other tools "
    "refuse such a file, and what was meant may not be what is read.",
    bad='{"model": {"type": "llama", "context_length": 08}}',
    good='{"model": {"type": "llama", "context_length": 8}}',
)
UNKNOWN = Rule(
    "T105",
    "error",
    "parser",
    "A key that the runtime does not know",
    why="A key that is misspelt, in the wrong section, or of another version of the runtime makes "
    "it refuse the bundle. Only `session_options`, `run_options` and the entries of providers "
    "take keys of any name, and at the top level what is no object or list is ignored.",
    bad='{"model": {"type": "llama", "context_length": 8, "vocabulary_size": 32000}}',
    good='{"model": {"type": "llama", "context_length": 8, "vocab_size": 32000}}',
)
WRONG_KIND = Rule(
    "T106",
    "error",
    "parser",
    "A value of the wrong kind",
    why="The runtime takes exactly one kind of value under a key: a number in quotes, null, or a "
    "list where one number is due make it refuse the bundle. All provider options, and all "
    "session options of a name that it does not know itself, are strings.",
    bad='{"model": {"type": "llama", "context_length": 8, "pad_token_id": [0, 1]}}',
    good='{"model": {"type": "llama", "context_length": 8, "pad_token_id": 0}}',
)
VALUE = Rule(
    "T107",
    "error",
    "parser",
    "A value that is not allowed",
    why="Some keys take whole numbers only, or a range, or one of a few words; any other value "
    "makes the runtime refuse the bundle.",
    bad='{"model": {"type": "llama", "context_length": 8, "vocab_size": 32000.5}}',
    good='{"model": {"type": "llama", "context_length": 8, "vocab_size": 32000}}',
)
CONTEXT = Rule(
    "T108",
    "error",
    "parser",
    "No context length",
    why="The runtime refuses a config without `model.context_length`, except for models of "
    "streamed speech.",
    bad='{"model": {"type": "llama"}}',
    good='{"model": {"type": "llama", "context_length": 2048}}',
)
PATH = Rule(
    "T109",
    "error",
    "parser",
    "A file outside the bundle",
    why="The runtime refuses file names that are absolute or go up with `..`: a bundle names only "
    "what is inside it.",
    bad='{"model": {"type": "llama", "context_length": 8, "decoder": {"filename": "../m.onnx"}}}',
    good='{"model": {"type": "llama", "context_length": 8, "decoder": {"filename": "m.onnx"}}}',
)
DUPLICATE = Rule(
    "T110",
    "warning",
    "parser",
    "A key that is there twice",
    why="The runtime takes the last of two values, and reads two objects into one another. Other "
    "tools, and people, may see only one of them.",
    bad='{"model": {"type": "llama", "context_length": 8, "context_length": 16}}',
    good='{"model": {"type": "llama", "context_length": 16}}',
)
NEWER = Rule(
    "T111",
    "info",
    "parser",
    "A key that older runtimes refuse",
    why="The key came with the version of onnxruntime-genai that is named; one that is older "
    "refuses the bundle for it. With an inventory of a machine that has an older one, this is "
    "the error T105.",
    bad='{"model": {"type": "llama", "context_length": 8}, "search": {"audio_top_k": 4}}',
    good='{"model": {"type": "llama", "context_length": 8}, "search": {"top_k": 4}}',
)
IGNORED = Rule(
    "T112",
    "info",
    "parser",
    "A value that is ignored",
    why="At the top level the runtime skips everything that is no object or list, without a "
    "word. That is where a comment may stand, and where a setting that belongs into a section "
    "is lost.",
    bad='{"temperature": 0.5, "model": {"type": "llama", "context_length": 8}}',
    good='{"model": {"type": "llama", "context_length": 8}, "search": {"temperature": 0.5}}',
)
REMOVED = Rule(
    "T113",
    "error",
    "parser",
    "A key of an older version that is refused",
    why="The runtime knows the key only to refuse it: what it said is written elsewhere now.",
    bad='{"model": {"type": "llama", "context_length": 8, "decoder": {"num_hidden_layers": 1, '
    '"state_groups": [{"kind": "fixed_conv", "layer_ids": [0], "bindings": {}}]}}}',
    good='{"model": {"type": "llama", "context_length": 8, "decoder": {"num_hidden_layers": 1, '
    '"inputs": {"past_conv_names": "past_conv.%d"}, '
    '"state_groups": [{"kind": "fixed_conv", "layer_ids": [0]}]}}}',
)
STATE_GROUPS = Rule(
    "T114",
    "error",
    "parser",
    "Groups of states that do not fit",
    why="The runtime refuses a bundle whose decoder state groups have no kind or no layers, name "
    "layers that the decoder does not have, or disagree with one another.",
    bad='{"model": {"type": "llama", "context_length": 8, "decoder": {"num_hidden_layers": 1, '
    '"state_groups": [{"kind": "paged_kv", "layer_ids": [0, 1]}]}}}',
    good='{"model": {"type": "llama", "context_length": 8, "decoder": {"num_hidden_layers": 2, '
    '"state_groups": [{"kind": "paged_kv", "layer_ids": [0, 1]}]}}}',
)

NOT_UNICODE = Rule(
    "T117",
    "error",
    "files",
    "A bundle whose path is not UTF-8",
    why="The runtime takes the path of a bundle as text, and refuses one whose bytes are none, as "
    "archives from other systems leave them.",
    bad="a bundle in a folder whose name has the byte E9 for the letter \u00e9",
    good="the same letter as the bytes C3 A9",
)

RULES: tuple[Rule, ...] = (
    SYNTAX,
    ESCAPE,
    ENCODING,
    ODD,
    UNKNOWN,
    WRONG_KIND,
    VALUE,
    CONTEXT,
    PATH,
    DUPLICATE,
    NEWER,
    IGNORED,
    REMOVED,
    STATE_GROUPS,
    NOT_UNICODE,
)
