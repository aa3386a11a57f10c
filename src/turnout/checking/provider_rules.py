"""The rules of `checking.providers`: EPs and their options (codes T401-T419 and T43x)."""

from __future__ import annotations

from turnout.checking.findings import Rule


def _stage(options: str) -> str:
    return '{"model": {"decoder": {"session_options": ' + options + "}}}"


def _providers(entries: str) -> str:
    return _stage('{"provider_options": ' + entries + "}")


CPU_OPTIONS = Rule(
    "T401",
    "error",
    "route",
    "Options on the CPU EP",
    why="onnxruntime-genai refuses every option on an entry of the CPU EP when the model is"
    " loaded. The CPU EP needs no entry at all.",
    bad=_providers('[{"cpu": {"num_threads": "4"}}]'),
    good=_stage('{"intra_op_num_threads": 4, "provider_options": []}'),
)
AS_TEXT = Rule(
    "T402",
    "warning",
    "route",
    "provider_options that are text",
    why="onnxruntime-genai takes text under this key as a free session option of that name, which"
    " nothing reads: the stage runs on the CPU EP, without a word.",
    bad=_providers('"OpenVINO"'),
    good=_providers('[{"OpenVINO": {}}]'),
)
EMPTY = Rule(
    "T403",
    "info",
    "route",
    "An element of provider_options that names no EP",
    why="An empty object beside other entries does nothing. An EP may have been meant.",
    bad=_providers('[{}, {"OpenVINO": {}}]'),
    good=_providers('[{"OpenVINO": {}}]'),
)
TWICE = Rule(
    "T404",
    "error",
    "route",
    "One EP under two spellings",
    why="Entries of one spelling are added up, but two spellings of one EP on a decoder of one"
    ' graph are registered twice, and the model does not load: "Provider ... has already been'
    ' registered".',
    bad=_providers('[{"OpenVINO": {}}, {"openvino": {"device_type": "GPU"}}]'),
    good=_providers('[{"OpenVINO": {"device_type": "GPU"}}]'),
)
SEVERAL = Rule(
    "T405",
    "info",
    "route",
    "Several EPs in one stage",
    why="Each EP is offered the nodes that those before it in the list have left, so the order"
    " decides, and one stage may run on all of them. The CPU EP comes last wherever it stands, and"
    " takes what is left.",
    bad=_providers('[{"cuda": {}}, {"OpenVINO": {}}]'),
    good=_providers('[{"cuda": {}}]'),
)
ON_DECODER = Rule(
    "T406",
    "error",
    "route",
    "An EP on the decoder of a pipeline",
    why="The runtime then keeps the inputs of the whole pipeline in that EP's memory, where its"
    ' stages cannot read them: generating fails with "Managed input input_ids resides on the'
    ' primary device type". EPs of a pipeline belong to its stages.',
    bad='{"model": {"decoder": {"session_options": {"provider_options": [{"OpenVINO": {}}]},'
    ' "pipeline": [{"transformer": {"filename": "transformer.onnx"}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"transformer": {"filename": "transformer.onnx",'
    ' "session_options": {"provider_options": [{"OpenVINO": {}}]}}}]}}}',
)
UNREAD = Rule(
    "T407",
    "warning",
    "route",
    "Session options of a stage that takes none",
    why="Of the stages of a vision pipeline the runtime reads the session options of vision_attn"
    " alone, and of that one only where run_on_cpu is false. Others load with defaults.",
    bad='{"model": {"vision": {"pipeline": [{"patch_embed": {"filename": "patch_embed.onnx",'
    ' "session_options": {"provider_options": [{"QNN": {}}]}}}]}}}',
    good='{"model": {"vision": {"pipeline": [{"patch_embed": {"filename": "patch_embed.onnx"}}]}}}',
)
UNKNOWN_EP = Rule(
    "T408",
    "warning",
    "route",
    "An EP that is not known",
    why="A name that no EP goes by does not load. It is right if a plugin of that name is"
    " registered, which a check for a machine (--inventory) can tell.",
    bad=_providers('[{"OpenVIN": {}}]'),
    good=_providers('[{"OpenVINO": {}}]'),
)
REFUSED = Rule(
    "T410",
    "error",
    "route",
    "An option that the EP refuses",
    why="The session of the stage cannot be created, or fails at the first prompt. What an EP"
    " takes depends on its generation: OpenVINO as a plugin takes one device in capitals, while"
    " the EP built into onnxruntime-openvino took AUTO:GPU,CPU and CPU_FP32 as well.",
    bad=_providers('[{"OpenVINO": {"device_type": "cpu"}}]'),
    good=_providers('[{"OpenVINO": {"device_type": "CPU"}}]'),
)
VALUELESS = Rule(
    "T411",
    "warning",
    "route",
    "A value that has no effect",
    why="The EP passes over a value that it does not know, in silence or with a line in its log"
    " that onnxruntime-genai does not show, and runs with its default.",
    bad=_providers('[{"QNN": {"backend_type": "htp", "htp_performance_mode": "fast"}}]'),
    good=_providers('[{"QNN": {"backend_type": "htp", "htp_performance_mode": "burst"}}]'),
)
IGNORED = Rule(
    "T412",
    "warning",
    "route",
    "An option that the EP reads no more",
    why="It was removed or renamed, and has no effect. The plugin of OpenVINO reads most of its"
    " former options from load_config alone.",
    bad=_providers('[{"OpenVINO": {"num_of_threads": "4"}}]'),
    good=_providers(
        '[{"OpenVINO": {"load_config": "{\\"CPU\\": {\\"INFERENCE_NUM_THREADS\\": \\"4\\"}}"}}]'
    ),
)
UNKNOWN = Rule(
    "T413",
    "warning",
    "route",
    "An option that is not known",
    why="Plugins ignore options that they do not know, so a misspelt one has no effect; EPs that"
    " are built into onnxruntime refuse most. Turnout's table may be older than the EP.",
    bad=_providers('[{"QNN": {"backend_type": "htp", "htp_perfomance_mode": "burst"}}]'),
    good=_providers('[{"QNN": {"backend_type": "htp", "htp_performance_mode": "burst"}}]'),
)
MISSING = Rule(
    "T414",
    "info",
    "route",
    "No option that says which backend",
    why="QNN takes its backend from the device it is given, and has none for the CPU of a machine:"
    " there, creating the session fails. Named, it is the same on every machine.",
    bad=_providers('[{"QNN": {"htp_performance_mode": "burst"}}]'),
    good=_providers('[{"QNN": {"backend_type": "htp", "htp_performance_mode": "burst"}}]'),
)
COMPILES = Rule(
    "T415",
    "warning",
    "route",
    "A config that compiles when it is loaded",
    why="With ep.context_enable the first load writes the compiled model beside the graph, and runs"
    " as if it had not; every load after it fails, since the file is there. It belongs to compiling"
    " ahead of time. Turnout leaves it out when it loads a bundle; other programs do not.",
    bad=_stage('{"ep.context_enable": "1", "provider_options": [{"OpenVINO": {}}]}'),
    good=_providers('[{"OpenVINO": {}}]'),
)
NO_FALLBACK = Rule(
    "T416",
    "error",
    "route",
    "Fallback to the CPU EP forbidden for a stage that runs on it",
    why="With session.disable_cpu_ep_fallback no node may be left to the CPU EP, so a stage that"
    " names no other EP does not load.",
    bad=_stage('{"session.disable_cpu_ep_fallback": "1", "provider_options": []}'),
    good=_stage('{"session.disable_cpu_ep_fallback": "1", "provider_options": [{"OpenVINO": {}}]}'),
)
ABSOLUTE = Rule(
    "T417",
    "warning",
    "route",
    "An absolute path",
    why="The bundle works on one machine, in one place: elsewhere the file is not there.",
    bad=_providers('[{"QNN": {"backend_path": "C:\\\\qnn\\\\QnnHtp.dll"}}]'),
    good=_providers('[{"QNN": {"backend_type": "htp"}}]'),
)
PROFILING = Rule(
    "T418",
    "info",
    "route",
    "Profiling that was left on",
    why="Every run writes a file that grows with each token, whose name begins with the value,"
    " and is slower for it.",
    bad=_stage('{"enable_profiling": "profile"}'),
    good=_stage("{}"),
)
THREADS = Rule(
    "T419",
    "warning",
    "route",
    "An odd number of threads",
    why="A number below zero is taken without a word, like one above all that a machine has;"
    " inter_op_num_threads has no effect, since onnxruntime-genai runs nodes one after another.",
    bad=_stage('{"intra_op_num_threads": -1}'),
    good=_stage('{"intra_op_num_threads": 4}'),
)

SPELLING = Rule(
    "T430",
    "warning",
    "route",
    "A second spelling of an EP, which counts for nothing",
    why="Of two spellings of one EP a stage of a pipeline takes the first with its options, and"
    " passes over the second with all of its own (measured).",
    bad='{"model": {"decoder": {"pipeline": [{"a": {"filename": "a.onnx", "session_options":'
    ' {"provider_options": [{"OpenVINO": {}}, {"openvino": {"device_type": "GPU"}}]}}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"a": {"filename": "a.onnx", "session_options":'
    ' {"provider_options": [{"OpenVINO": {"device_type": "GPU"}}]}}}]}}}',
)
IN_THE_WAY = Rule(
    "T431",
    "error",
    "route",
    "A compiled model that is in the way of compiling again",
    why="ep.context_enable writes the compiled model to ep.context_file_path, or to NAME_ctx.onnx"
    ' beside the graph, and fails where that file is there: "exists already". So does every load'
    " after the first.",
    bad="ep.context_enable=1 for model.onnx, and model_ctx.onnx beside it",
    good="the option removed, and the stage's file set to model_ctx.onnx where that is to run",
)
VALUE = Rule(
    "T432",
    "error",
    "route",
    "A session option that onnxruntime refuses",
    why="Most session options of any value are taken. A few are read strictly, and so is the length"
    " of all; the session of the stage is then not created, or its first run fails.",
    bad=_stage('{"log_severity_level": 5}'),
    good=_stage('{"log_severity_level": 4}'),
)
NAME = Rule(
    "T433",
    "error",
    "route",
    "An EP by a name that onnxruntime-genai does not know it by",
    why='The model does not load: "Unknown provider name". Turnout\'s own short names are not all'
    " known there, and of some EPs only one spelling is.",
    bad=_providers('[{"coreml": {}}]'),
    good=_providers('[{"CoreML": {}}]'),
)

WHOLE = Rule(
    "T434",
    "error",
    "route",
    "An option for a whole decoder, on a stage of a pipeline",
    why="With enable_causallm OpenVINO keeps the cache itself, of a graph from ids to logits."
    " A stage of a pipeline does not load: 'Input for tensor name inputs_embeds is not"
    " found', 'No key_value_input_names found'.",
    bad='{"model": {"decoder": {"pipeline": [{"a": {"filename": "a.onnx", "session_options":'
    ' {"provider_options": [{"OpenVINO": {"enable_causallm": "True"}}]}}}]}}}',
    good='{"model": {"decoder": {"pipeline": [{"a": {"filename": "a.onnx", "session_options":'
    ' {"provider_options": [{"OpenVINO": {}}]}}}]}}}',
)
NOT_WHOLE = Rule(
    "T435",
    "warning",
    "route",
    "An option for a whole decoder, on a graph that the EP may not take whole",
    why="With enable_causallm OpenVINO must take every node. Graphs with GroupQueryAttention were"
    " tried with its plugin 1.8.1 and do not load: 'the model graph has been partitioned'. Whether"
    " other graphs answer rightly with it is not to be seen from outside.",
    bad="enable_causallm=True for a graph with GroupQueryAttention",
    good="the option left out",
)

RULES: tuple[Rule, ...] = (
    CPU_OPTIONS,
    AS_TEXT,
    EMPTY,
    TWICE,
    SEVERAL,
    ON_DECODER,
    UNREAD,
    UNKNOWN_EP,
    REFUSED,
    VALUELESS,
    IGNORED,
    UNKNOWN,
    MISSING,
    COMPILES,
    NO_FALLBACK,
    ABSOLUTE,
    PROFILING,
    THREADS,
    SPELLING,
    IN_THE_WAY,
    VALUE,
    NAME,
    WHOLE,
    NOT_WHOLE,
)
