"""The rules of `checking.graphs` and `checking.graph_ends`: codes T26x."""

from __future__ import annotations

from turnout.checking.findings import Rule

UNDEFINED = Rule(
    "T260",
    "error",
    "graph",
    "A graph that reads what nothing defines",
    why="A node's input, or an output of the graph, is the name of no input, constant or node "
    "before it. onnxruntime refuses to load the graph: `Node input ... is not a graph input, "
    "initializer, or output of a previous node`. Whether the nodes fit each other otherwise is "
    "not looked into: the types and shapes between them, their attributes, and whether an "
    "operator of that name exists.",
    bad="a `MatMul` of `hidden` and `lm_head.weight`, and no constant of the second name",
    good="the same graph with that constant",
)
TWICE = Rule(
    "T261",
    "error",
    "graph",
    "A name that stands twice in a graph",
    why="Two nodes have one name, or a tensor is defined twice. onnxruntime refuses to load the "
    "graph: `two nodes with same node name`, `Duplicate definition of name`. Constants may stand "
    "twice, and one of them is taken.",
    bad="two nodes with the name `/model/layers.0/MatMul`",
    good="names that differ, or nodes without names",
)
NO_VERSION = Rule(
    "T262",
    "error",
    "graph",
    "A graph that does not say by which versions it goes",
    why="Without `ir_version`, without any `opset_import`, or without one for the domain of an "
    "operator that is not onnxruntime's own, the graph does not load: `Missing model IR version`, "
    "`No opset import for domain`.",
    bad="a graph with an operator of the domain `com.example` and no import of that domain",
    good="the same graph with `opset_import` of version 1 of `com.example`",
)
NEWER = Rule(
    "T263",
    "warning",
    "graph",
    "A graph that is newer than onnxruntime 1.32",
    why="onnxruntime 1.32 loads graphs up to IR version 14, opset 28 of ONNX, 5 of `ai.onnx.ml`, "
    "and 1 of its own domains, and refuses others. A later one may take them.",
    bad="a graph of opset 99",
    good="a graph of opset 21",
)
UNKNOWN_DOMAIN = Rule(
    "T264",
    "warning",
    "graph",
    "Operators that onnxruntime alone does not have",
    why="The graph has operators of a domain that is not onnxruntime's, and defines no functions "
    "of it; the stage names no `custom_ops_library`. Unless its EP brings them, loading fails: "
    "`... is not a registered function/op`.",
    bad="an operator `com.example:Attention` on the CPU EP",
    good="the same with a `custom_ops_library` that has it",
)
BATCH = Rule(
    "T265",
    "error",
    "graph",
    "A graph for a fixed number of sequences, which is not what the config asks for",
    why="The runtime gives `batch_size` times `num_beams` sequences, one where nothing is said. A "
    "graph that fixes another number fails at the first prompt: 'Got invalid dimensions'. It runs "
    "only in programs that ask for that many.",
    bad='{"search": {"num_beams": 1}}, with input_ids [4, sequence]',
    good='{"search": {"num_beams": 1}}, with input_ids [batch, sequence]',
)
UNEVEN = Rule(
    "T266",
    "error",
    "graph",
    "Caches of one graph that do not fit each other",
    why="The runtime makes the value of a layer as its key is, all layers as long as each other, "
    "and all of one type, that of the first. A graph with others fails when it is loaded or at "
    "the first prompt: 'Got invalid dimensions', 'Unexpected input data type'.",
    bad="past_key_values.0.key [batch, 2, past, 64] and past_key_values.0.value [batch, 2, past, "
    "32]",
    good="both [batch, 2, past, 64]",
)
TYPES = Rule(
    "T267",
    "error",
    "graph",
    "An input or output of a type that the runtime does not have for it",
    why="Tokens, `attention_mask` and `position_ids` are int32 or int64, the latter two alike; "
    "lengths are int32; logits are float32, float16 or bfloat16. With others the first prompt "
    "fails ('only support int32 or int64 types', 'Unexpected input data type'), and logits of "
    "others are read as what they are not: nonsense without a word.",
    bad="input_ids of float32",
    good="input_ids of int64",
)
GROWN = Rule(
    "T268",
    "error",
    "graph",
    "A cache of fixed length that grows",
    why="Where graphs fix the length of their caches, the runtime has past and present share a "
    "buffer of that length. A graph that joins past and new keys by Concat makes a longer tensor, "
    "and the first prompt fails.",
    bad="past_key_values.0.key [batch, 2, 512, 64], joined with the new key by Concat",
    good="past_key_values.0.key [batch, 2, past, 64]",
)

GRAPH_RULES = (
    UNDEFINED,
    TWICE,
    NO_VERSION,
    NEWER,
    UNKNOWN_DOMAIN,
    BATCH,
    UNEVEN,
    TYPES,
    GROWN,
)
