"""The walk of `convert` over a model and what it reports, the same for PyTorch's modules and for Keras's layers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


class UnknownClass(Exception):
    """Says why no counterpart of a class can be made: another version of its library may have another class."""


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Rules(ABC):
    """What the things of a model are, modules or layers and losses, and what they become."""

    noun: str
    own: Collection[type]  # classes of the framework itself, which are known in every version
    library: str  # whose classes are known, in versions that may not be

    @abstractmethod
    def is_ours(self, thing: Any) -> bool:
        """Whether it is one of fusedops's, which has `why_not`."""

    @abstractmethod
    def is_known(self, kind: type) -> bool:
        """Whether there is a counterpart of this very class."""

    def has_counterpart(self, kind: type) -> bool:
        """Whether there is one of this class, or one for all like it."""
        return self.is_known(kind)

    @abstractmethod
    def counterpart(self, kind: type) -> type:
        """Of a class that has one.

        Raises:
            ImportError, AttributeError: this version of the library lacks something that the counterpart relies on.
            UnknownClass: the class is another than in the versions that are known.
        """

    @abstractmethod
    def original(self, kind: type) -> type | None:
        """The class that this one is the counterpart of."""

    @abstractmethod
    def become(self, thing: Any, kind: type) -> None:
        """Gives the thing this class."""

    def becomes(self, thing: Any) -> str:
        """What a thing that was replaced is now."""
        return full_name(getattr(type(thing), "mixin", type(thing)))

    @abstractmethod
    def condition(self, thing: Any) -> str:
        """What it depends on whether the kernel computes a thing that is ours, if only its input will tell."""

    @abstractmethod
    def name(self, thing: Any) -> str: ...

    @abstractmethod
    def is_container(self, thing: Any) -> bool:
        """Whether it is made of others, and not spoken of unless it is replaced."""

    @abstractmethod
    def parameters(self, thing: Any) -> int:
        """How many numbers are learned in the thing itself, and not in others within it."""

    def is_counted(self, thing: Any) -> bool:
        return True

    def fixed(self, thing: Any) -> str | None:
        """Why a thing of a known class must keep it, if it must."""
        return None

    def kept(self, thing: Any) -> str | None:
        """Why a thing of a class that is not known is kept, if there is more to say than that."""
        known = next((base for base in type(thing).__mro__[1:] if self.is_known(base)), None)
        return f"a subclass of {known.__name__}, which may compute something else" if known else None

    def computed(self, things: Sequence[Any]) -> Collection[Any]:
        """The things whose work the kernel of a thing around them does as well."""
        return ()


@dataclass(frozen=True)
class Outcome:
    """What became of one thing."""

    thing: Any
    kind: type  # its class before
    status: Literal["replaced", "found", "computed", "kept", "ignored"]  # computed: by the kernel of one around it
    reason: str = ""  # of what is kept; of what is replaced, the condition under which the kernel computes it


class Report:
    """What `convert` prints: of everything that was replaced, kept or found. A program reads `outcomes` instead.

    A condition is a sentence that says when the kernel computes the thing, where that is not known yet: such a thing is
    not counted among those replaced. What could not be replaced has its share of the model's parameters beside it:
    without an input, nothing more is known of how much of the model's work it does.
    """

    def __init__(self, rules: Rules, name: str) -> None:
        self.rules, self.name = rules, name
        self.all = self.replaced_ones = self.found_ones = self.parameters = 0
        self.is_empty = True  # neither replaced nor found anything
        self.replaced: Counter[tuple[str, str, str]] = Counter()  # class, counterpart, condition
        self.kept: dict[tuple[str, str], list[str]] = defaultdict(list)  # class and reason: names
        self.ignored: Counter[str] = Counter()
        self.parameters_of: Counter[str | tuple[str, str]] = Counter()  # of the keys of `kept` and `ignored`
        self.notes: list[str] = []
        self.outcomes: list[Outcome] = []

    def replace(self, thing: Any, kind: type) -> None:
        """A thing of this class has become one of its counterpart."""
        condition = self.rules.condition(thing)
        self.replaced[kind.__name__, self.rules.becomes(thing), condition] += 1
        self.is_empty = False
        self.outcomes.append(Outcome(thing, kind, "replaced", condition))
        self.replaced_ones += self._count(thing) and not condition

    def find(self, thing: Any) -> None:
        """What is fusedops's already."""
        self.outcomes.append(Outcome(thing, type(thing), "found", self.rules.condition(thing)))
        self.found_ones += self._count(thing) and not self.rules.condition(thing)
        self.is_empty = False

    def keep(self, thing: Any, reason: str) -> None:
        self.kept[type(thing).__name__, reason].append(self.rules.name(thing))
        self.parameters_of[type(thing).__name__, reason] += self.rules.parameters(thing)
        self.outcomes.append(Outcome(thing, type(thing), "kept", reason))
        self._count(thing)

    def compute(self, thing: Any) -> None:
        """What the kernel of a thing around it does as well."""
        self.outcomes.append(Outcome(thing, type(thing), "computed"))

    def ignore(self, thing: Any) -> None:
        self.outcomes.append(Outcome(thing, type(thing), "ignored"))
        if not self.rules.is_container(thing) and self._count(thing):
            self.ignored[type(thing).__name__] += 1
            self.parameters_of[type(thing).__name__] += self.rules.parameters(thing)

    def _count(self, thing: Any) -> bool:
        counted = self.rules.is_counted(thing)
        self.all += counted
        return counted

    def _share(self, key: str | tuple[str, str]) -> str:
        """Of the parameters, if it is one to speak of."""
        share = self.parameters_of[key] / (self.parameters or 1)
        return f", {share:.0%} of the parameters" if share >= 0.01 else ""

    def publish(self, function: str, verbose: bool) -> None:
        """Prints the report, if asked to, and warns of an empty one the caller of `function`, which calls this."""
        if verbose:
            print(self)
        if self.is_empty:
            where = "the report says why" if verbose else "the report, with verbose=True, says why"
            warnings.warn(f"{function}: {self._nothing()}; {where}", stacklevel=3)

    def _nothing(self) -> str:
        return f"nothing was converted: none of the {self.all} {self.rules.noun} of {self.name!r} could be replaced"

    def __str__(self) -> str:
        lines = [f"fusedops: {self.replaced_ones} of {self.all} {self.rules.noun} of {self.name!r} replaced"]
        if self.is_empty:
            lines = [f"fusedops: {self._nothing()}"]
        if self.found_ones:
            lines[0] += f", {self.found_ones} are fusedops's already"
        width = max((len(kind) for kind, *_ in self.replaced), default=0)
        for (kind, counterpart, condition), count in sorted(self.replaced.items()):
            line = f"  {count:4} {kind:{width}} -> {counterpart}"
            lines.append(f"{line}, {condition}" if condition else line)
        for (kind, reason), names in sorted(self.kept.items()):
            which = repr(names[0]) if len(names) == 1 else f"({len(names)})"
            lines.append(f"  kept {kind} {which}: {reason}{self._share((kind, reason))}")
        if self.ignored:
            sorted_ones = sorted(self.ignored.items())
            counts = ", ".join(f"{name} ({count}{self._share(name)})" for name, count in sorted_ones)
            lines.append(f"  no counterpart for {counts}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def convert(things: Sequence[Any], rules: Rules, report: Report) -> None:
    """Has every thing that is known become its counterpart, in this order."""
    report.parameters += sum(map(rules.parameters, things))
    rest = [thing for thing in things if not _convert(thing, rules, report)]
    computed = rules.computed(things)
    for thing in rest:
        if thing in computed:
            report.compute(thing)
        elif reason := rules.kept(thing):
            report.keep(thing, reason)
        else:
            report.ignore(thing)


def revert(things: Iterable[Any], rules: Rules) -> None:
    """Gives every counterpart its original class back."""
    for thing in things:
        kind = rules.original(type(thing))
        if kind:
            rules.become(thing, kind)


def _convert(thing: Any, rules: Rules, report: Report) -> bool:
    """Whether there was something to do or to say."""
    kind = type(thing)
    if rules.is_ours(thing):
        reason = thing.why_not()
        if reason:
            report.keep(thing, reason)
        else:
            report.find(thing)
        return True
    if not rules.has_counterpart(kind):
        return False
    reason = rules.fixed(thing) or _become_counterpart(thing, rules)
    if reason == "":  # it has the code of something that is known by chance
        return False
    if reason:
        report.keep(thing, reason)
    else:
        report.replace(thing, kind)
    return True


def _become_counterpart(thing: Any, rules: Rules) -> str | None:
    """Gives the thing the class of its counterpart; or leaves it its own, for the reason that is returned."""
    kind = type(thing)
    try:
        rules.become(thing, rules.counterpart(kind))
        reason: str | None = thing.why_not()
    except UnknownClass as error:
        reason = str(error)
    except (ImportError, AttributeError) as error:
        if kind in rules.own:
            raise
        reason = f"this version of {rules.library} is not known: {error}"
    if reason is not None and type(thing) is not kind:
        rules.become(thing, kind)
    return reason
