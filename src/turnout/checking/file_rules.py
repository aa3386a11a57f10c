"""The rules of `checking.files`, `checking.unused` and `checking.data`: codes T30x and T31x."""

from __future__ import annotations

from turnout.checking.findings import Rule

DERIVED = Rule(
    "T300",
    "error",
    "files",
    "A derived bundle given as a bundle",
    why="A derived bundle holds a route's config and no weights. It loads only as long as the "
    "bundle that it was derived from stays where it is, and nothing can be derived from it.",
    bad="`bundle/_compiled/routes/0123456789ab`, with a `turnout-derived.json` in it",
    good="`bundle`",
)
MISSING = Rule(
    "T301",
    "error",
    "files",
    "A stage's graph that is missing",
    why="The runtime opens the graph of every stage when it loads the bundle, and fails.",
    bad='{"model": {"decoder": {"filename": "modle.onnx"}}}',
    good='{"model": {"decoder": {"filename": "model.onnx"}}}',
)
OUTSIDE = Rule(
    "T302",
    "error",
    "files",
    "A path that leads out of the bundle",
    why="A bundle is made by others, and nothing outside its folder is read because its config "
    "says so. onnxruntime-genai refuses absolute paths and `..` as well; links that lead out are "
    "refused by Turnout. A hub cache's own links are fine.",
    bad='{"model": {"decoder": {"filename": "../target/model.onnx"}}}',
    good='{"model": {"decoder": {"filename": "model.onnx"}}}',
)
NOT_REGULAR = Rule(
    "T303",
    "error",
    "files",
    "A folder, a pipe or a device in the place of a file",
    why="The runtime refuses a folder, and waits for ever for what comes out of a pipe.",
    bad="`model.onnx` is a folder",
    good="`model.onnx` is a file",
)
UNREADABLE = Rule(
    "T304",
    "error",
    "files",
    "A graph that cannot be read",
    why="What is there is no ONNX file: it was cut short, is a pointer that Git LFS left in its "
    "place, a web page, or of another format. Loading it fails, mostly with a message about "
    "protobuf.",
    bad="a `model.onnx` of 134 bytes that begins with `version https://git-lfs.github.com`",
    good="the file that `git lfs pull` fetches",
)
OTHER_CASE = Rule(
    "T305",
    "error",
    "files",
    "A file that is there under another case only",
    why="Windows and macOS take `Model.onnx` for `model.onnx`, and Linux does not: a bundle that "
    "works where it was made fails elsewhere.",
    bad='{"model": {"decoder": {"filename": "Model.onnx"}}} beside a file `model.onnx`',
    good='{"model": {"decoder": {"filename": "model.onnx"}}} beside a file `model.onnx`',
)
LINKED = Rule(
    "T306",
    "error",
    "files",
    "External data behind a link that onnxruntime refuses",
    why="onnxruntime follows links first, and then wants the data inside the folder of the "
    "graph, as named or as linked. A graph that was copied beside a link to its data does not "
    "load: `External data path escapes model directory`.",
    bad="`model.onnx`, a file, beside `model.onnx.data -> ../elsewhere/model.onnx.data`",
    good="both files in one folder, or both links into one folder",
)
NAMED = Rule(
    "T307",
    "warning",
    "files",
    "A file that a section names and that cannot be used",
    why="Configs of processors and adapters are opened when images or audio are given, so that "
    "text alone still works; then it fails.",
    bad='{"model": {"vision": {"config_filename": "image_processor.json"}}} without that file',
    good='{"model": {"vision": {"config_filename": "image_processor.json"}}} with it',
)
NATIVE_CODE = Rule(
    "T308",
    "warning",
    "files",
    "A bundle that has native code loaded",
    why="`custom_ops_library` is loaded into the process before the graph is, and its code runs "
    "with all your rights. The runtime looks for it in the bundle, beside the libraries of EPs, "
    "in the working folder, and then wherever the system looks for libraries; one for another "
    "system, or that is no library of operators, fails to load.",
    bad='{"model": {"decoder": {"session_options": {"custom_ops_library": "ops.dll"}}}}',
    good='{"model": {"decoder": {"session_options": {}}}}',
)
UNUSED = Rule(
    "T309",
    "info",
    "files",
    "A large file that nothing uses",
    why="Graphs and weights that no stage names are fetched, copied and stored for nothing: "
    "often what an older export left.",
    bad="`model_fp32.onnx.data`, which no graph names",
    good="only files that the config or a graph names",
)

LINKED_WEIGHTS = Rule(
    "T318",
    "info",
    "files",
    "Weights in a hub's cache for an EP that refuses links",
    why="A hub's cache keeps files as links into its `blobs` folder. The CPU EP follows them, and "
    "OpenVINO's plugin does not, where weights are kept beside the graph: onnxruntime-genai alone "
    "fails with `resolves to ... which is outside the base directory`. Turnout loads such a bundle "
    "by a derived one with hard links.",
    bad="`snapshots/<hash>/model.data -> ../../blobs/<hash>` and a stage on OpenVINO, without "
    "Turnout",
    good="the same in Turnout, or a copy that was made with `cp -rL`",
)
NO_LIBRARY = Rule(
    "T319",
    "error",
    "files",
    "A native library that is nowhere",
    why="The library that `custom_ops_library` names is not in the bundle, not in the working "
    "folder, and not where this system looks for libraries: loading fails with `Failed to load "
    "library`.",
    bad='{"model": {"decoder": {"session_options": {"custom_ops_library": "ops.dll"}}}} without '
    "that file",
    good='{"model": {"decoder": {"session_options": {"custom_ops_library": "ops.dll"}}}} with it',
)

DATA_MISSING = Rule(
    "T310",
    "error",
    "files",
    "External data that is missing",
    why="A graph keeps its weights in another file, which must be beside it (or in the folder "
    "that the session option `session.model_external_initializers_file_folder_path` names). "
    "Without it the stage does not load. A compiled graph too may keep the weights of what was "
    "not compiled in the data file of the graph that it was made from.",
    bad="`model.onnx` without the `model.onnx.data` that it names",
    good="both files in one folder",
)
DATA_OUTSIDE = Rule(
    "T311",
    "error",
    "files",
    "External data outside the bundle",
    why="onnxruntime refuses a location that is absolute or leaves the graph's folder, and so "
    "does Turnout.",
    bad="a graph whose tensors name `/home/me/model.onnx.data`, or `../model.onnx.data`",
    good="a graph whose tensors name `model.onnx.data`",
)
RANGE = Rule(
    "T312",
    "error",
    "files",
    "Tensors that are not wholly in their data file",
    why="The graph says at which byte of its data file each tensor begins, and the file ends "
    "before: it was cut short, is empty, or belongs to another export. The stage does not load.",
    bad="a tensor at bytes 0 to 16384 of a file of 9000 bytes",
    good="the whole file",
)
LENGTH = Rule(
    "T313",
    "error",
    "files",
    "Tensors whose length on disk is not that of their shape",
    why="onnxruntime computes a tensor's bytes from its shape and type, and refuses a length "
    "that is another one.",
    bad="a float32 tensor of shape [64, 64] with a length of 8192 bytes",
    good="the same tensor with a length of 16384 bytes",
)
OVERLAP = Rule(
    "T314",
    "warning",
    "files",
    "Tensors that overlap in their data file",
    why="Two tensors share some bytes, and neither is a part of the other: onnxruntime loads "
    "both without a word, and one of them holds wrong weights. Tensors at the very same bytes, "
    "and rows of a larger tensor, are sharing, and fine.",
    bad="a tensor at bytes 0 to 16384, and another at bytes 8192 to 24576",
    good="a tensor at bytes 0 to 16384, and another at bytes 16384 to 32768",
)
POINTER = Rule(
    "T315",
    "error",
    "files",
    "A Git LFS pointer in the place of external data",
    why="The repository was cloned without Git LFS, which leaves a text of a few lines where the "
    "data should be. The stage does not load.",
    bad="a `model.onnx.data` of 134 bytes that begins with `version https://git-lfs.github.com`",
    good="the file that `git lfs pull` fetches",
)
SHARED_DATA = Rule(
    "T316",
    "error",
    "files",
    "A shared initializer that its file does not hold",
    why="The runtime reads the ranges that `shared_initializers` names when it loads the bundle, "
    "and fails where a file is missing or too short (read in its source: no EP at hand takes "
    "shared initializers).",
    bad='{"model": {"decoder": {"shared_initializers": [{"data_file": "gone.data"}]}}}',
    good='{"model": {"decoder": {"shared_initializers": [{"data_file": "model.data"}]}}}',
)
TENSOR = Rule(
    "T317",
    "error",
    "files",
    "A tensor that onnxruntime refuses",
    why="It has no element type, or one that onnxruntime does not know; or something reads it and "
    "its data is described by a key of external data that nobody knows, or has fewer numbers in "
    "the graph than its shape needs. The stage does not load, or fails as it is made ready. What "
    "the numbers are is not looked into: data of another export, or of zeros, answers nonsense "
    "without a word.",
    bad="a float32 tensor of shape [4] with 3 numbers",
    good="the same tensor with 4 numbers",
)

DATA_RULES = (
    LINKED,
    DATA_MISSING,
    DATA_OUTSIDE,
    RANGE,
    LENGTH,
    OVERLAP,
    POINTER,
    SHARED_DATA,
    TENSOR,
)
FILE_RULES = (
    DERIVED,
    MISSING,
    OUTSIDE,
    NOT_REGULAR,
    UNREADABLE,
    OTHER_CASE,
    NAMED,
    NATIVE_CODE,
    UNUSED,
    LINKED_WEIGHTS,
    NO_LIBRARY,
)
