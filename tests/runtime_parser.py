"""The judge of the parser's checks: what `onnxruntime_genai.Config` itself says of a config."""

from __future__ import annotations

from pathlib import Path

from turnout.checking.findings import Finding
from turnout.checking.parsing import check_bytes


class RuntimeParser:
    """The runtime's parser, asked with a text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def refusal(self, text: str | bytes) -> str | None:
        """What the runtime says against the config, None where it takes it."""
        import onnxruntime_genai as og

        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        (self.folder / "genai_config.json").write_bytes(data)
        try:
            og.Config(str(self.folder))
        except Exception as error:
            return str(error).replace(str(self.folder), "<bundle>") or "refused"
        return None


def errors_of(text: str | bytes, genai: str = "") -> list[Finding]:
    """The errors that the check has for the config's parser."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    findings = check_bytes(data, "genai_config.json", genai)
    return [finding for finding in findings if finding.severity == "error"]


def disagreement(parser: RuntimeParser, data: str | bytes) -> str | None:
    """Where check and runtime differ about a config, in words; None where they agree."""
    refusal, errors = parser.refusal(data), errors_of(data)
    if (refusal is None) == (not errors):
        return None
    ours = [(finding.code, finding.path, finding.found) for finding in errors[:3]]
    return f"runtime: {refusal or 'takes it'}; check: {ours or 'takes it'}; config: {data[:600]!r}"
