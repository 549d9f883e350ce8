"""Why a method was chosen: cross-validated scores, and the rule in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refocal.report.verdict import say_p_value
from refocal.report.words import GIVEN, format_number, lower_title

_CROSS_VALIDATED = "cross-validated NLL"
_SMALLEST = 0.0001  # smaller differences are not written out


@dataclass(frozen=True)
class CrossValidated:
    """A method and its score, on rows that it was not fitted to unless the `Choice` says otherwise.

    Attributes:
        name: Its short name.
        title: Its name for people.
        nll: Cross-validated NLL.
        behind: How much higher that is than the lowest.
        error: Standard error of this difference.
        parameters: Number of effective parameters.
        p_value: One-sided p-value of `behind`, see `AutoCalibrator.results_`. None if the rows were also fitted to.
    """

    name: str
    title: str
    nll: float
    behind: float
    error: float
    parameters: float
    p_value: float | None

    @property
    def phrase(self) -> str:
        """The title inside a sentence."""
        return "the scores as given" if self.name == GIVEN else lower_title(self.title)


@dataclass(frozen=True)
class Choice:
    """The choice among methods by the one-standard-error rule.

    The rule takes the method with the fewest parameters among those whose cross-validated NLL is higher than the lowest
    by at most the standard error of the difference.

    Attributes:
        methods: All methods, the lowest NLL first.
        chosen: The one that the rule takes.
        score: What the methods are compared by.
    """

    methods: tuple[CrossValidated, ...]
    chosen: CrossValidated
    score: str = _CROSS_VALIDATED

    @classmethod
    def of(
        cls, results: Sequence[Mapping[str, Any]], names: Sequence[tuple[str, str]], *, score: str = _CROSS_VALIDATED
    ) -> Choice:
        """Read the results of an `AutoCalibrator`, given the name and title of each candidate."""
        methods = [
            CrossValidated(
                name=names[result["index"]][0],
                title=names[result["index"]][1],
                nll=result["score"],
                behind=result["behind"],
                error=result["error"],
                parameters=result["parameters"],
                p_value=result["p_value"],
            )
            for result in results
        ]
        taken = next(place for place, result in enumerate(results) if result["chosen"])
        return cls(tuple(methods), methods[taken], score)

    @property
    def best(self) -> CrossValidated:
        """The method with the lowest cross-validated NLL."""
        return self.methods[0]

    @property
    def rule(self) -> str:
        """One sentence: what was chosen, to what it was preferred, and why.

        Example:
            >>> first = CrossValidated("beta", "Beta calibration", 0.412, 0.0, 0.0, 3, 1.0)
            >>> second = CrossValidated("platt", "Platt scaling", 0.413, 0.001, 0.002, 2, 0.309)
            >>> Choice((first, second), first).rule[:66]
            'Beta calibration was chosen: it has the lowest cross-validated NLL'
        """
        chosen, best = self.chosen, self.best
        given = chosen.name == GIVEN
        start = "The scores as given were kept" if given else f"{chosen.title} was chosen"
        it, its, has = ("they", "their", "have") if given else ("it", "its", "has")
        if chosen != best:
            reason = f"{its} {self.score} is within one standard error of the lowest"
            beside = f"{best.phrase}, {format_number(best.nll)}; difference {_difference(chosen)}"
            if chosen.p_value is not None:
                beside += f", {say_p_value(chosen.p_value)}"
            fewest = (
                f"of such methods {it} {has} the fewest parameters ({chosen.parameters:.0f} instead of "
                f"{best.parameters:.0f})"
            )
        else:
            reason = f"{it} {has} the lowest {self.score}"
            beside = format_number(best.nll)
            if len(self.methods) > 1:
                following = self.methods[1]
                beside += f"; next, {following.phrase}, {_difference(following)} higher"
            fewest = "no method with fewer parameters is within one standard error"
        end = f"{it} {'need' if given else 'needs'} no fit" if not chosen.parameters else fewest
        return f"{start}: {reason} ({beside}), and {end}."


def _difference(method: CrossValidated) -> str:
    """The difference from the lowest NLL with its standard error."""
    if max(method.behind, method.error) < _SMALLEST:
        if method.behind > method.error:  # small, but more than the rule allows: both numbers show it
            return f"{method.behind:.1e} ± {method.error:.1e}".replace("-", "−")
        return f"less than {_SMALLEST:.4f}"
    return f"{method.behind:.4f} ± {method.error:.4f}"
