"""`perdure demo`: a turn that is killed by SIGKILL, and finished by other processes."""

from perdure.cli.demo.command import demo

__all__ = ["demo"]
