#!/usr/bin/env python3
"""What journal and listener cost while they are off: a replay against the same one without any of its hooks.

    python benchmarks/journal.py mooncake_conversation.jsonl.gz [--limit 1500] [--pairs 25] [--check]

The rival is a copy of the package from whose scheduler every hook is taken out: whatever is done only for a
journal, the tests for one, the arguments that carry it, and the rules that a cut chunk is returned with. Both
play ``benchmarks/replay.py`` in turn, each in a process of its own, pinned to one core; CPU time is compared,
pair by pair and at its least. ``--check`` ends with status 1 if the journal costs more than 2 %.

Measured with the defaults on the conversation's first 1,500 requests, on a quiet AMD EPYC of two cores, CPython
3.11.7: the median of 25 pairs was +1.21 %, the least times of all gave -0.45 %; single pairs there lie between
-2 % and +5 %. While others used the machine the same gave +0.42 % and +3.2 %, single pairs -10 % to +13 %.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 0.02
GONE = {"journal", "listener", "account", "considered", "steps", "rule"}
"""Names that hold a journal or a listener, or something made for one."""
RULED = {"cut_chunk", "match_limit"}
"""Functions that return a rule, for a journal, behind what they are asked for."""
HOOKED = [
    "scheduler.py",
    "chunks.py",
    "cache/admission.py",
    "cache/coordinator.py",
    "cache/matching.py",
    "rounds/admissions.py",
    "rounds/decode_worker.py",
    "rounds/fused.py",
    "rounds/phases.py",
    "rounds/prefill_worker.py",
    "rounds/retraction.py",
]


def gone(node: ast.AST | None) -> bool:
    """Return whether an expression is nothing where there is no journal."""
    if isinstance(node, ast.Name):
        return node.id in GONE
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return gone(node.values[0])
    return isinstance(node, ast.Attribute) and node.attr in ("journal", "listener")


class Strip(ast.NodeTransformer):
    """Takes the journal's hooks out of a module; ``idle`` are functions of which nothing is left."""

    def __init__(self, idle: set[str]) -> None:
        self.idle = idle
        self.true: set[str] = set()
        self.taken = 0

    def truth(self, node: ast.expr) -> bool | None:
        """Return what a test comes to without a journal; None: that still depends."""
        if gone(node):
            return False
        if isinstance(node, ast.Name) and node.id in self.true:
            return True
        if isinstance(node, ast.Compare) and gone(node.left) and len(node.ops) == 1:
            return isinstance(node.ops[0], ast.Is)
        if isinstance(node, ast.BoolOp):
            told = [self.truth(value) for value in node.values]
            ends = isinstance(node.op, ast.Or)
            if ends in told:
                return ends
            return (not ends) if all(one is not None for one in told) else None
        return None

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        told = self.truth(node.test)
        if told is None:
            return self.generic_visit(node)
        self.taken += 1
        kept = node.body if told else node.orelse
        return [out for one in kept for out in self._statements(one)]

    def _statements(self, node: ast.stmt) -> list[ast.stmt]:
        out = self.visit(node)
        if out is None:
            return []
        return out if isinstance(out, list) else [out]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        told = self.truth(node.test)
        if told is None:
            return self.generic_visit(node)
        self.taken += 1
        found: ast.AST = self.visit(node.body if told else node.orelse)
        return found

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        kept = [value for value in node.values if self.truth(value) is None]
        if len(kept) == len(node.values):
            return self.generic_visit(node)
        self.taken += 1
        told = self.truth(node)
        if told is not None:
            return ast.Constant(told)
        node.values = kept
        return self.visit(kept[0]) if len(kept) == 1 else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        told = self.truth(node)
        return self.generic_visit(node) if told is None else ast.Constant(told)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        target, value = node.targets[0], node.value
        if gone(target):
            self.taken += 1
            return None
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = []
            for name, given in zip(target.elts, value.elts, strict=True):
                if isinstance(name, ast.Name) and self.truth(given):
                    self.true.add(name.id)
                elif not gone(name):
                    pairs.append((name, given))
            self.taken += len(pairs) < len(target.elts)
            if not pairs:
                return None
            one = len(pairs) == 1
            names, values = [name for name, _ in pairs], [given for _, given in pairs]
            node.targets = [names[0] if one else ast.Tuple(names, ast.Store())]
            node.value = values[0] if one else ast.Tuple(values, ast.Load())
        elif isinstance(target, ast.Tuple) and _called(value) in RULED:
            node.targets = [target.elts[0]]
            self.taken += 1
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if gone(node.target) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self.visit(node.value) if _called(node.value) in RULED else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        kept = [given for given in node.args if not gone(given)]
        self.taken += len(kept) < len(node.args)
        node.args = kept
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if _called(node.value) in self.idle:
            self.taken += 1
            return None
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if node.name in ("journal", "listener"):
            return None
        given = node.args
        first = len(given.args) - len(given.defaults)
        defaults = [None] * first + list(given.defaults)
        kept = [(arg, at) for arg, at in zip(given.args, defaults, strict=True) if arg.arg not in GONE]
        given.args = [arg for arg, _ in kept]
        given.defaults = [at for _, at in kept if at is not None]
        self.true = set()
        before = self.taken
        self.generic_visit(node)
        if node.name in RULED:
            for one in ast.walk(node):
                if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple):
                    one.value = one.value.elts[0]
        said = [one for one in node.body if not _is_text(one)]
        if self.taken > before and (not said or (isinstance(said[0], ast.Return) and said[0].value is None)):
            self.idle.add(node.name)
        node.body = node.body or [ast.Pass()]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.If | ast.For | ast.While) and not node.body:
            node.body = [ast.Pass()]
        return node


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    called = node.func
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def without_hooks(package: Path) -> int:
    """Take every hook out of the copy of the package in ``package``; how many there were."""
    taken, idle = 0, set[str]()
    for _ in range(2):  # the second time, calls of functions of which nothing was left
        for name in HOOKED:
            path = package / "scheduler" / name
            strip = Strip(idle)
            tree = ast.fix_missing_locations(strip.visit(ast.parse(path.read_text())))
            path.write_text(ast.unparse(tree) + "\n")
            taken += strip.taken
    return taken


def cpu_s(where: Path, arguments: list[str], core: int) -> tuple[float, int]:
    """Play ``benchmarks/replay.py`` with the package in ``where``: CPU seconds without reading, and rounds."""
    command = [sys.executable, str(ROOT / "benchmarks" / "replay.py"), "--json", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(where), "PYTHONHASHSEED": "0"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        stdout=subprocess.PIPE,
        check=True,
    )
    figures = json.loads(done.stdout)
    return figures["cpu_s"] - figures["cpu_read_s"], figures["rounds"]


def main() -> int:
    """Run the benchmark and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace", nargs="+", help="the trace's files")
    parser.add_argument("--limit", type=int, default=1_500, help="requests")
    parser.add_argument("--pairs", type=int, default=25, help="how often each is played")
    parser.add_argument("--check", action="store_true", help="status 1 if it costs more than 2 %%")
    arguments = parser.parse_args()
    given = [str(Path(name).resolve()) for name in arguments.trace] + ["--limit", str(arguments.limit)]
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / "hooked", Path(folder) / "stripped"]
        for place in places:
            shutil.copytree(ROOT / "kvplan", place / "kvplan", ignore=shutil.ignore_patterns("__pycache__"))
        taken = without_hooks(places[1] / "kvplan")
        times: list[list[float]] = [[], []]
        rounds = set()
        for pair in range(-1, arguments.pairs):  # the first one compiles and is not counted
            for at in (0, 1) if pair % 2 else (1, 0):
                took, count = cpu_s(places[at], given, core)
                rounds.add(count)
                if pair >= 0:
                    times[at].append(took)
    if len(rounds) != 1:
        print(
            "benchmarks/journal.py: the two replays differ, so the hooks were taken out wrongly",
            file=sys.stderr,
        )
        return 2
    ratios = [with_it / without for with_it, without in zip(*times, strict=True)]
    least = min(times[0]) / min(times[1])
    print(
        f"{arguments.limit:,} requests, {rounds.pop():,} rounds, {arguments.pairs} pairs; {taken} hooks taken out"
    )
    print(
        f"  CPU, least    {min(times[0]):.3f} s with hooks, {min(times[1]):.3f} s without: {least - 1:+.2%}"
    )
    middle = statistics.median(ratios)
    print(f"  pair by pair  median {middle - 1:+.2%}, {min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%}")
    return int(arguments.check and middle - 1 > MOST)


if __name__ == "__main__":
    sys.exit(main())
