"""What a launch gives back: hazards, counters, and both as text or JSON."""

from dataclasses import dataclass, field


@dataclass
class Hazard:
    """One finding. `cls` is its class; `lines` the PTX lines of the access that found it and of the earlier one."""

    cls: str
    message: str
    lines: tuple
    agents: tuple = ()
    severity: str = "error"  # error, or warning: what only --strict reports
    count: int = 1
    where: tuple = ()  # source text or .loc of each line
    sources: tuple = ()  # of each line, what it comes from (source_lines.py), or ""

    def text(self, file="<ptx>"):
        """`file:line: severity: class: message`, then each access with its PTX text."""
        out = [
            f"{file}:{self.lines[0] if self.lines else 0}:1: {self.severity}: {self.cls}: {self.message}"
            + (f" ({self.count} times)" if self.count > 1 else "")
        ]
        for i, w in enumerate(self.where):
            agent = f"{self.agents[i]}: " if i < len(self.agents) and self.agents[i] else ""
            line = f"line {self.lines[i]}: " if self.lines[i] else ""  # 0: an access of another launch
            out.append(f"note: {'access' if i == 0 else 'earlier'}: {line}{agent}{w}".removesuffix(": "))
            if i < len(self.sources) and self.sources[i]:
                out.append(f"note: source: {self.sources[i]}")
        return "\n".join(out)

    def as_dict(self):
        return {
            "class": self.cls,
            "severity": self.severity,
            "message": self.message,
            "lines": list(self.lines),
            "agents": list(self.agents),
            "count": self.count,
            "where": list(self.where),
            "sources": list(self.sources),
        }


@dataclass
class Report:
    """The outcome of one launch."""

    file: str
    entry: str
    hazards: list = field(default_factory=list)
    counters: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    touched: object = None  # what a launch after this one may overlap with (dependent.py)

    @property
    def errors(self):
        return [h for h in self.hazards if h.severity == "error"]

    @property
    def ok(self) -> bool:
        """No hazard of severity error."""
        return not self.errors

    def text(self) -> str:
        lines = [h.text(self.file) for h in self.hazards]
        lines += [f"note: {n}" for n in self.notes]
        total = self.counters.get("total", {})
        errors, warnings = len(self.errors), len(self.hazards) - len(self.errors)
        lines.append(f"{self.entry}: {total.get('instructions', 0)} warp instructions, {errors} hazards, {warnings} warnings")
        return "\n".join(lines)

    def as_dict(self):
        return {
            "entry": self.entry,
            "ok": self.ok,
            "hazards": [h.as_dict() for h in self.hazards],
            "counters": self.counters,
            "notes": self.notes,
        }
