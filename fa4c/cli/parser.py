"""argparse whose complaints have the form of all others: what, why and how to fix it, wrong usage."""

from __future__ import annotations

import argparse

from ..ir.diagnostics import UsageError, nearest


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints the usage and exits."""

    def error(self, message: str):
        raise UsageError(message, fix=f"see `{self.prog} --help`")

    def parse_known_args(self, args=None, namespace=None):
        found, left = super().parse_known_args(args, namespace)
        if left:  # no caller of ours wants them, and here it is known which flags there are
            flag = left[0].partition("=")[0]
            if not flag.startswith("-"):
                raise UsageError(f"{self.prog} has no place for '{left[0]}'", fix=f"leave it out; see `{self.prog} --help`")
            raise UsageError(f"{self.prog} has no flag {flag}", fix=nearest(flag, self._option_string_actions))
        return found, left

    def _check_value(self, action, value) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            raise UsageError(f"there is no command '{value}'", fix=nearest(value, action.choices))
        name, known = "/".join(action.option_strings) or action.dest.upper(), ", ".join(action.choices)
        raise UsageError(f"{name} takes no '{value}'", why=f"its values are: {known}", fix=nearest(value, action.choices))
