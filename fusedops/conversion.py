"""The walk of `convert` over a model and what it reports, the same for PyTorch's modules and for Keras's layers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

OTHER_MASKS = "with the same seed, dropout drops other elements than before: its random numbers are fusedops's"


# Base classes of all models, by package and name, and the package that converts them.
_CONVERTED_BY = {("torch", "Module"): "fusedops.torch", ("keras", "Layer"): "fusedops.tf.keras"}


class UnknownClass(Exception):
    """Raised for a class without a counterpart. The library may have changed the class in another version."""


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def no_model(function: str, expected: str, got: Any) -> TypeError:
    """The error for an argument of `convert`, or of a function like it, that is no model of the framework."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(got).__mro__}
    other = next((package for base, package in _CONVERTED_BY.items() if base in bases), None)
    if isinstance(got, type):
        shown = f"the class {full_name(got)}: give a model of it"
    else:
        shown = f"{type(got)}, which {other} converts" if other else f"{type(got)}"
    return TypeError(f"{function}: model must be {expected}; got {shown}")


def subclass(mixin: type, kind: type, members: dict[str, Any]) -> type:
    """A class named like `kind`, derived from the mixin and `kind`.

    Raises:
        UnknownClass: the class takes no subclass.
    """
    try:
        return type(kind)(kind.__name__, (mixin, kind), members)
    except Exception as error:  # raised by its metaclass or its __init_subclass__
        raise UnknownClass(f"its class takes no subclass ({type(error).__name__}: {error})") from error


class Rules(ABC):
    """Maps the parts of a model (modules, or layers and losses) to their counterparts."""

    noun: str
    own: Collection[type]  # classes of the framework itself, known in every version
    library: str  # the other library whose classes are known, in certain versions

    @abstractmethod
    def is_ours(self, thing: Any) -> bool:
        """True if it belongs to fusedops. It then has `why_not`."""

    @abstractmethod
    def is_known(self, kind: type) -> bool:
        """True if there is a counterpart of exactly this class."""

    def has_counterpart(self, kind: type) -> bool:
        """True if there is a counterpart of this class, or one for all classes like it."""
        return self.is_known(kind)

    @abstractmethod
    def counterpart(self, kind: type) -> type:
        """The counterpart of a class that has one.

        Raises:
            ImportError, AttributeError: this version of the library lacks something that the counterpart needs.
            UnknownClass: the class differs from the known versions.
        """

    @abstractmethod
    def original(self, kind: type) -> type | None:
        """The class that this one is the counterpart of."""

    @abstractmethod
    def become(self, thing: Any, kind: type) -> None:
        """Gives the thing this class."""

    def becomes(self, thing: Any) -> str:
        """The name of the class that a converted part has now."""
        return full_name(getattr(type(thing), "mixin", type(thing)))

    @abstractmethod
    def condition(self, thing: Any) -> str:
        """The condition on its input under which the kernel computes it; empty if there is none."""

    @abstractmethod
    def name(self, thing: Any) -> str: ...

    @abstractmethod
    def is_container(self, thing: Any) -> bool:
        """True if it only contains other parts. Reports mention it only if it was replaced."""

    @abstractmethod
    def parameters(self, thing: Any) -> int:
        """The number of parameters of the part itself, without its children."""

    def is_counted(self, thing: Any) -> bool:
        return True

    def fixed(self, thing: Any) -> str | None:
        """The reason why a part of a known class must stay unconverted; None if there is none."""
        return None

    def skip_reason(self, thing: Any) -> str | None:
        """The reason why a part of an unknown class is skipped, beyond the class being unknown."""
        known = next((base for base in type(thing).__mro__[1:] if self.is_known(base)), None)
        return f"a subclass of {known.__name__}, which may compute something else" if known else None

    def computed(self, things: Sequence[Any]) -> Collection[Any]:
        """The parts whose work the kernel of an enclosing part does."""
        return ()


# found: it belonged to fusedops before; computed: by the kernel of an enclosing part.
Status: TypeAlias = Literal["replaced", "found", "computed", "kept", "ignored"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a conversion for one part."""

    thing: Any
    kind: type  # its class before
    status: Status
    reason: str = ""  # why it was skipped, or the condition under which the kernel computes it
    became: str = ""  # the new class of a replaced part


class Report:
    """The report of `convert` on all parts replaced, skipped or found. Programs read `outcomes`.

    A part with a condition is not counted as replaced: its input decides if the kernel computes it. Skipped parts show
    their share of the model's parameters, since their share of its work is unknown without an input.
    """

    def __init__(self, rules: Rules, name: str) -> None:
        self.rules, self.name = rules, name
        self.parameters = 0  # of the whole model
        self.outcomes: list[Outcome] = []
        self.further: list[str] = []  # lines on conversions of other things than modules or layers
        self.notes: list[str] = []

    def add(self, thing: Any, status: Status, reason: str = "", kind: type | None = None, became: str = "") -> None:
        self.outcomes.append(Outcome(thing, kind or type(thing), status, reason, became))

    def has_replaced(self, kind: type) -> bool:
        """True if a part of exactly this class was replaced."""
        return any(each.status == "replaced" and each.kind is kind for each in self.outcomes)

    @property
    def is_empty(self) -> bool:
        """True if nothing was replaced or found."""
        return not self.further and not any(each.status in ("replaced", "found") for each in self.outcomes)

    @property
    def all(self) -> int:
        """The number of parts that the report counts."""
        return len(self._counted("replaced", "found", "kept", "ignored"))

    @property
    def replaced_ones(self) -> int:
        return sum(not each.reason for each in self._counted("replaced"))

    def _counted(self, *statuses: str) -> list[Outcome]:
        rules = self.rules
        found = [each for each in self.outcomes if each.status in statuses and rules.is_counted(each.thing)]
        return [each for each in found if each.status != "ignored" or not rules.is_container(each.thing)]

    def _share(self, outcomes: Iterable[Outcome]) -> str:
        """The share of the parameters as text; empty below 1 %."""
        share = sum(self.rules.parameters(each.thing) for each in outcomes) / (self.parameters or 1)
        return f", {share:.0%} of the parameters" if share >= 0.01 else ""

    def publish(self, function: str, verbose: bool) -> None:
        """Prints the report if `verbose`. Warns the caller of `function`, which calls this, if the report is empty."""
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
        if conditional := sum(bool(each.reason) for each in self._counted("replaced")):
            lines[0] += f", {conditional} more on a condition"
        if others := sum(each.status == "replaced" for each in self.outcomes) - len(self._counted("replaced")):
            lines[0] += f", {others} that are no {self.rules.noun}"
        if found := sum(not each.reason for each in self._counted("found")):
            lines[0] += f", {found} are fusedops's already"
        replaced = Counter((x.kind.__name__, x.became, x.reason) for x in self.outcomes if x.status == "replaced")
        width = max((len(kind) for kind, *_ in replaced), default=0)
        for (kind, became, condition), count in sorted(replaced.items()):
            line = f"  {count:4} {kind:{width}} -> {became}"
            lines.append(f"{line}, {condition}" if condition else line)
        lines += [f"  {line}" for line in self.further]
        kept, ignored = defaultdict(list), defaultdict(list)
        for each in self.outcomes:
            if each.status == "kept":
                kept[each.kind.__name__, each.reason].append(each)
        for each in self._counted("ignored"):
            ignored[each.kind.__name__].append(each)
        for (kind, reason), several in sorted(kept.items()):
            which = repr(self.rules.name(several[0].thing)) if len(several) == 1 else f"({len(several)})"
            lines.append(f"  kept {kind} {which}: {reason}{self._share(several)}")
        if ignored:
            counts = (f"{name} ({len(several)}{self._share(several)})" for name, several in sorted(ignored.items()))
            lines.append(f"  no counterpart for {', '.join(counts)}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def convert(things: Sequence[Any], rules: Rules, report: Report) -> None:
    """Converts every known part to its counterpart, in this order."""
    report.parameters += sum(map(rules.parameters, things))
    rest = [thing for thing in things if not _convert(thing, rules, report)]
    computed = rules.computed(things)
    for thing in rest:
        if thing in computed:
            report.add(thing, "computed")
        elif reason := rules.skip_reason(thing):
            report.add(thing, "kept", reason)
        else:
            report.add(thing, "ignored")


def revert(things: Iterable[Any], rules: Rules) -> None:
    """Gives every counterpart its original class back, unless that would lose an option."""
    for thing in things:
        kind = rules.original(type(thing))
        if kind and not has_own_options(thing):
            rules.become(thing, kind)


def has_own_options(thing: Any) -> bool:
    """True if an option is set that the original class does not have. Class attributes are their defaults."""
    kind = type(thing)
    return any(getattr(thing, name) != getattr(kind, name) for name in getattr(kind, "own_options", ()))


def _convert(thing: Any, rules: Rules, report: Report) -> bool:
    """True if the part was converted or reported."""
    kind = type(thing)
    if rules.is_ours(thing):
        reason = thing.why_not()
        if reason:
            report.add(thing, "kept", reason)
        else:
            report.add(thing, "found", rules.condition(thing))
        return True
    if not rules.has_counterpart(kind):
        return False
    reason = rules.fixed(thing) or _become_counterpart(thing, rules)
    if reason == "":  # it has the code of a known class by chance
        return False
    if reason:
        report.add(thing, "kept", reason)
    else:
        report.add(thing, "replaced", rules.condition(thing), kind, rules.becomes(thing))
    return True


def _become_counterpart(thing: Any, rules: Rules) -> str | None:
    """Gives the part the class of its counterpart; or restores its own class and returns the reason."""
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
