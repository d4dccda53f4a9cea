"""The walk of `convert` over a model and what it reports, the same for PyTorch's modules and for Keras's layers."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

OTHER_MASKS = "with the same seed, dropout drops other elements than before: its random numbers are fusedops's"


# The classes of all models, by the package and the name, and the package that converts them.
_CONVERTED_BY = {("torch", "Module"): "fusedops.torch", ("keras", "Layer"): "fusedops.tf.keras"}


class UnknownClass(Exception):
    """Says why no counterpart of a class can be made: another version of its library may have another class."""


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
    """A class with the name of `kind`, of both, the mixin before it.

    Raises:
        UnknownClass: the class takes no subclass.
    """
    try:
        return type(kind)(kind.__name__, (mixin, kind), members)
    except Exception as error:  # of its metaclass or its __init_subclass__, which may want anything
        raise UnknownClass(f"its class takes no subclass ({type(error).__name__}: {error})") from error


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
    reason: str = ""  # of what is kept; of what is replaced or found, the condition under which the kernel computes it
    became: str = ""  # of what is replaced


class Report:
    """What `convert` prints: of everything that was replaced, kept or found. A program reads `outcomes` instead.

    A condition is a sentence that says when the kernel computes the thing, where that is not known yet: such a thing is
    not counted among those replaced. What could not be replaced has its share of the model's parameters beside it:
    without an input, nothing more is known of how much of the model's work it does.
    """

    def __init__(self, rules: Rules, name: str) -> None:
        self.rules, self.name = rules, name
        self.parameters = 0  # of all things
        self.outcomes: list[Outcome] = []
        self.further: list[str] = []  # what was converted that is no module or layer, a line each
        self.notes: list[str] = []

    def replace(self, thing: Any, kind: type) -> None:
        """A thing of this class has become one of its counterpart."""
        became = self.rules.becomes(thing)
        self.outcomes.append(Outcome(thing, kind, "replaced", self.rules.condition(thing), became))

    def find(self, thing: Any) -> None:
        """What is fusedops's already."""
        self.outcomes.append(Outcome(thing, type(thing), "found", self.rules.condition(thing)))

    def keep(self, thing: Any, reason: str) -> None:
        self.outcomes.append(Outcome(thing, type(thing), "kept", reason))

    def compute(self, thing: Any) -> None:
        """What the kernel of a thing around it does as well."""
        self.outcomes.append(Outcome(thing, type(thing), "computed"))

    def ignore(self, thing: Any) -> None:
        self.outcomes.append(Outcome(thing, type(thing), "ignored"))

    def has_replaced(self, kind: type) -> bool:
        """Whether anything of this very class."""
        return any(each.status == "replaced" and each.kind is kind for each in self.outcomes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was replaced or found."""
        return not self.further and not any(each.status in ("replaced", "found") for each in self.outcomes)

    @property
    def all(self) -> int:
        """How many things the report counts."""
        return len(self._counted("replaced", "found", "kept", "ignored"))

    @property
    def replaced_ones(self) -> int:
        return sum(not each.reason for each in self._counted("replaced"))

    def _counted(self, *statuses: str) -> list[Outcome]:
        rules = self.rules
        found = [each for each in self.outcomes if each.status in statuses and rules.is_counted(each.thing)]
        return [each for each in found if each.status != "ignored" or not rules.is_container(each.thing)]

    def _share(self, outcomes: Iterable[Outcome]) -> str:
        """Of the parameters, if it is one to speak of."""
        share = sum(self.rules.parameters(each.thing) for each in outcomes) / (self.parameters or 1)
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
