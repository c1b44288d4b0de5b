"""The one exception of the emulator: a located refusal."""


class EmulatorError(Exception):
    """A launch that cannot start or cannot continue: where, what, why and how to put it right."""

    def __init__(self, what: str, *, file: str = "<ptx>", line: int = 0, why: str = "", fix: str = ""):
        self.what, self.file, self.line, self.why, self.fix = what, file, line, why, fix
        super().__init__(self.text())

    @property
    def where(self) -> str:
        """`file:line:1`, for the command line."""
        return f"{self.file}:{self.line}:1" if self.line else self.file

    def text(self) -> str:
        """The message as the command line prints it."""
        lines = [f"{self.where}: error: {self.what}"]
        if self.why:
            lines.append(f"note: why: {self.why}")
        if self.fix:
            lines.append(f"note: fix: {self.fix}")
        return "\n".join(lines)

    def located(self, file: str, line: int) -> "EmulatorError":
        """The same error at a place; an error that already has a line keeps it."""
        if self.line:
            return self
        return EmulatorError(self.what, file=file, line=line, why=self.why, fix=self.fix)
