"""Every error that Turnout raises on purpose.

    TurnoutError
    ├── UsageError (also ValueError)   the call itself is wrong
    │   ├── UnknownEpError             an EP that neither catalog nor inventory knows
    │   ├── UnknownStageError          a stage name that the bundle does not have
    │   ├── UnknownDeviceError         a device word that is none of config, auto, cpu, gpu, npu
    │   ├── NotABundleError            a path that is no directory with a genai_config.json
    │   └── OutputExistsError          an output that is there already
    ├── SourceError                    a model file that no bundle can be built from
    │   ├── GgufError                  not a readable GGUF file
    │   └── UnsupportedModelError      an architecture, tensor type or tokenizer not handled
    ├── BundleError                    what is on disk is wrong
    │   ├── ConfigError                genai_config.json: syntax or content
    │   ├── GraphError                 an ONNX file: unreadable, missing or outside the bundle
    │   └── TokenizerError             tokenizer files: missing or unusable
    ├── MachineError                   this machine cannot do it
    │   ├── EpUnavailableError         a known EP that is not installed or does not load
    │   └── DeviceUnavailableError     a device that no EP of this machine serves
    ├── WriteError                     an output could not be written; nothing was left behind
    ├── ProcessError                   a child process crashed, hung, or did not answer
    │   └── ProcessTimeoutError        one that took longer than it was allowed to
    ├── CompileError                   a stage could not be compiled, or what came of it is wrong
    ├── LoadError                      a session could not be loaded; nothing is left loaded
    └── GenerationError                a loaded session could not answer
        └── PromptTooLongError         more prompt tokens than the context takes

A message says what is wrong; the keyword facts say what was found, what was
expected, where, and what to do. The command line prints all of them.
"""

from __future__ import annotations


class TurnoutError(Exception):
    """The root. `str()` gives the problem followed by one indented line a fact.

    `problem` is one sentence; `found`, `expected`, `where` (a file, a JSON path or
    both) and `fix` are short phrases, None where they would add nothing.
    """

    def __init__(
        self,
        problem: str,
        *,
        found: object = None,
        expected: object = None,
        where: object = None,
        fix: object = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.facts: dict[str, str] = {
            name: str(value)
            for name, value in (
                ("found", found),
                ("expected", expected),
                ("where", where),
                ("fix", fix),
            )
            if value is not None
        }

    def __str__(self) -> str:
        lines = [self.problem]
        lines += [f"  {name}: {value}" for name, value in self.facts.items()]
        return "\n".join(lines)


class UsageError(TurnoutError, ValueError):
    """The call itself is wrong: an option, a name, a path."""


class UnknownEpError(UsageError):
    """An EP name that neither the catalog nor the inventory knows."""


class UnknownStageError(UsageError):
    """A stage name that the bundle does not have."""


class UnknownDeviceError(UsageError):
    """A device word that is none of config, auto, cpu, gpu, npu."""


class NotABundleError(UsageError):
    """A path that is no directory with a `genai_config.json`."""


class OutputExistsError(UsageError):
    """An output that is there already and was not to be overwritten."""


class SourceError(TurnoutError):
    """A model file that no bundle can be built from."""


class GgufError(SourceError):
    """Not a readable GGUF file: another format, truncated, or absurd."""


class UnsupportedModelError(SourceError):
    """A sound file whose architecture, tensor type or tokenizer is not handled."""


class BundleError(TurnoutError):
    """What is on disk is wrong."""


class ConfigError(BundleError):
    """`genai_config.json` is not JSON, or says something impossible."""


class GraphError(BundleError):
    """An ONNX file is unreadable, missing, or outside its bundle."""


class TokenizerError(BundleError):
    """Tokenizer files are missing or unusable."""


class MachineError(TurnoutError):
    """This machine cannot do what was asked."""


class EpUnavailableError(MachineError):
    """A known EP that is not installed here, or whose library does not load."""


class DeviceUnavailableError(MachineError):
    """A device that no EP of this machine serves."""


class WriteError(TurnoutError):
    """An output could not be written; nothing was left behind."""


class ProcessError(TurnoutError):
    """A child process crashed, hung, or ended without an answer."""


class ProcessTimeoutError(ProcessError):
    """A child process took longer than it was allowed to."""


class LoadError(TurnoutError):
    """A session could not be loaded; nothing is left loaded."""


class GenerationError(TurnoutError):
    """A loaded session could not answer."""


class PromptTooLongError(GenerationError):
    """More prompt tokens than the context takes."""


class CompileError(TurnoutError):
    """What was to be prepared ahead of time was not, or is not what it should be."""
