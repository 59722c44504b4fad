"""The verdicts of a study: a card for each claim, with the words of the paper and the effect over the zone of the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.markup import Markup, join, tag
from vitrail.reports.charts import zone_strip
from vitrail.reports.components import lead, list_figures
from vitrail.reports.study.units import describe_zone, noun_of, read_effect, spell, tick
from vitrail.text import number, plural, sentence

Row = Mapping[str, Any]

# sign, class and colour; also the order of the tally
VERDICTS = {
    "held": ("✓", "holds", "emerald"),
    "did not hold": ("✗", "fails", "ruby"),
    "cannot tell": ("?", "unsure", "amber"),
    "out of range": ("–", "open", "muted"),
}
NO_INTERVAL = "The file names no interval for this effect, so that it cannot be told."
MEANINGS = {
    "held": "the interval supports the claim by the rule",
    "did not hold": "the interval contradicts the claim by the rule",
    "cannot tell": "the interval is too wide, or a condition of the claim was not met",
    "out of range": "the study is too small to contradict the claim",
}


def verdict_of(claim: Row) -> str:
    """Returns the verdict, which without an interval is "cannot tell" unless it is "out of range"."""
    verdict = claim.get("verdict")
    if verdict not in VERDICTS:
        return "cannot tell"
    decided = verdict in ("held", "did not hold")
    return "cannot tell" if decided and not read_effect(claim.get("effect")).known else str(verdict)


def badge(verdict: str, more: str = "") -> Markup:
    """Returns a verdict as a sign and a word in its colour."""
    sign, kind, _ = VERDICTS[verdict]
    return tag("span", tag("span", sign, aria_hidden="true"), f" {verdict}{more}", class_=f"verdict {kind}")


def key_of(claim: Row) -> str:
    """Returns the anchor of the card of a claim."""
    return "claim-" + "".join(letter if letter.isalnum() else "-" for letter in str(claim.get("name", "")).lower())


def tally(claims: Sequence[Row]) -> Markup:
    """Returns the headline: how many claims held, and the claims of each verdict with links to their cards."""
    if not claims:
        return tag("div", tag("p", "This study judges no claim."), class_="headline bare")
    found = {verdict: [claim for claim in claims if verdict_of(claim) == verdict] for verdict in VERDICTS}
    held = tag("p", f"{len(found['held'])} of {len(claims)}", class_="figure-value")
    figure = tag("div", held, tag("p", f"{'claim' if len(claims) == 1 else 'claims'} held", class_="figure-name"))
    rows = []
    for verdict, own in found.items():
        if own:
            links = [tag("li", tag("a", claim.get("name", ""), href=f"#{key_of(claim)}")) for claim in own]
            rows.append(
                join(tag("dt", badge(verdict)), tag("dd", tag("ul", *links), lead(sentence(MEANINGS[verdict]), ".")))
            )
    return tag("div", figure, tag("dl", *rows, class_="tally"), class_="headline tallied")


def verdicts(claims: Sequence[Row], data: Row) -> Markup | None:
    """Returns the section of all claims."""
    if not claims:
        return None
    test, validation = number(data.get("test")), number(data.get("validation"))
    words = (
        "Each claim was written down with its rule before the first final cell was trained. The strip shows the effect with its "
        "confidence interval and, in green, where the claim holds; of a ratio, the figure of the paper. Where several claims are "
        "judged they are decided at stricter levels than that of the interval (Holm), named below it."
    )
    if math.isfinite(test) and math.isfinite(validation):
        words += (
            f" Every final cell was judged once on {plural(int(test), 'test image')}; learning rates were chosen on "
            f"{validation:,.0f} others that no cell was trained on."
        )
    return join(
        tag("h2", "Verdicts"),
        lead(words),
        tag("div", *(card(claim, verdict_head(claim)) for claim in claims), class_="claims"),
    )


def controls(rows: Sequence[Row]) -> Markup | None:
    """Returns the section of the controls, in the form of the claims."""
    if not rows:
        return None
    words = (
        "Comparisons whose answer is known: arms that differ in nothing but their seeds must not be told apart, and a handicap "
        "that certainly costs accuracy must be seen. A study whose controls fail says nothing about its claims."
    )
    return join(
        tag("h2", "Controls"),
        lead(words),
        tag("div", *(card(row, control_head(row), "a difference is seen here") for row in rows), class_="claims"),
    )


def verdict_head(claim: Row) -> tuple[str, Markup]:
    """Returns the verdict that colours a claim, and how it is shown."""
    verdict = verdict_of(claim)
    fragile = verdict == "held" and claim.get("rate_robust") == "no"
    return verdict, badge(verdict, ", rate-sensitive" if fragile else "")


def control_head(control: Row) -> tuple[str, Markup]:
    """Returns the verdict that colours a control, by whether it came out as it should, and how that is shown."""
    passed = control.get("passed")
    verdict = "cannot tell" if passed is None else "held" if passed else "did not hold"
    sign, kind, _ = VERDICTS[verdict]
    words = "cannot tell" if passed is None else "as it should be" if passed else "not as it should be"
    outcome = tag("span", tag("span", sign, aria_hidden="true"), f" {words}", class_=f"verdict {kind}")
    seen = {"held": "a difference was seen", "did not hold": "no difference of that size"}
    return verdict, join(outcome, lead(seen.get(verdict_of(control), "a difference: cannot tell")))


def card(claim: Row, outcome: tuple[str, Markup], label: str = "the claim holds here") -> Markup:
    """Returns the article of one claim or control; ``label`` stands over the zone of its rule."""
    effect, (colour, decided) = read_effect(claim.get("effect")), outcome
    head = tag("div", tag("h3", claim.get("name", "")), decided, class_="claim-head")
    quote = claim.get("quote") and tag("blockquote", tag("p", "“", claim["quote"], "”"), _source(claim))
    why = claim.get("why") if verdict_of(claim) == claim.get("verdict") else NO_INTERVAL
    beside = [read_effect(other) for other in claim.get("beside") or ()]
    names = [str(other.get("name", "")) for other in claim.get("beside") or ()]
    facts = {
        "Why": sentence(str(why or "")),
        "What would change it": sentence(str(claim.get("to_tell") or "")),
        "Caveat": claim.get("caveat") or "",
        "Beside it": tag("ul", *(tag("li", f"{own}: {other.words()}") for own, other in zip(names, beside)))
        if beside
        else "",
    }
    words = tag("div", quote or None, tag("p", claim.get("question", ""), class_="question"), describe(facts))
    lone = ", no interval" if math.isfinite(effect.estimate) and not effect.known else None
    shown = tag("p", effect.words(), lone, class_="effect")
    measured = tag("div", shown, strip(claim, VERDICTS[colour][2], label), chips(claim))
    return tag("article", head, words, measured, class_=f"claim-card {VERDICTS[colour][1]}-edge", id=key_of(claim))


def _source(claim: Row) -> Markup | None:
    return tag("cite", claim["source"]) if claim.get("source") else None


def describe(facts: Mapping[str, Any]) -> Markup:
    """Returns a list of terms and what is said about them, without those that are empty."""
    rows = (join(tag("dt", name), tag("dd", words)) for name, words in facts.items() if words)
    return tag("dl", *rows, class_="said")


def strip(claim: Row, colour: str, label: str) -> Markup | None:
    """Draws the effect over the zone in which the claim holds, or returns None without an interval."""
    effect, rule = read_effect(claim.get("effect")), claim.get("rule") or {}
    zone = number(rule.get("low")), number(rule.get("high"))
    unit, ends = effect.unit, [end for end in zone if math.isfinite(end)]
    values = (effect.estimate, effect.low, effect.high)
    if not effect.known or not ends or (effect.log and min(*values, *ends) <= 0):
        return None
    low, high = (end if math.isfinite(end) else side * math.inf for end, side in zip(zone, (-1, 1)))
    where, is_ratio = describe_zone(rule, unit), rule.get("kind") == "ratio"
    label = "the figure of the paper" if is_ratio else label
    side = "more" if ends[0] >= 1 else "less"
    ruled = f"Rule: {side} than 1×; the paper says {where}." if is_ratio else f"Rule: {where}."
    says = f"{effect.words()}. {ruled}"
    drawn = zone_strip(values, (low if not effect.log or low > 0 else 0.0, high), lambda value: tick(value, unit), colour=colour,
                       none=effect.none, label=label, says=says, log=effect.log)  # fmt: skip
    return tag("figure", drawn, tag("figcaption", ruled), class_="zone")


def chips(claim: Row) -> Markup:
    """Returns the facts about the figure: seeds, degrees of freedom, what could be seen, the rates, the regime."""
    effect = claim.get("effect") or {}
    seeds, df, level = (number(effect.get(name)) for name in ("seeds", "df", "level"))
    seen, decided = number(claim.get("detectable")), number(claim.get("verdict_level"))
    unit = str(effect.get("unit", ""))
    facts = {
        "seeds": f"{seeds:g}" if math.isfinite(seeds) else "",
        "degrees of freedom": f"{df:.3g}" if math.isfinite(df) else "",
        "interval": f"{100 * level:.4g}\u202f%" if math.isfinite(level) else "",
        "decided at": f"{100 * decided:.4g}\u202f%" if math.isfinite(decided) else "",
        "detectable": f"{spell(seen, unit).lstrip('+')}{noun_of(unit)}" if math.isfinite(seen) else "",
        "robust to the rate": claim.get("rate_robust") or "",
        "regime": claim.get("regime") or "",
        "experiment": claim.get("experiment") or "",
    }
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items() if value), class_="chips"
    )


def alarms(rows: Sequence[Row]) -> Markup | None:
    """Returns the box of the controls that failed, or None."""
    failed = [row for row in rows if row.get("passed") is False]
    if not failed:
        return None
    lines = (
        tag("p", tag("strong", row.get("name", "")), f": {row.get('why') or 'not as it should be'}") for row in failed
    )
    return tag("aside", tag("h2", f"{plural(len(failed), 'control')} failed"), *lines, class_="alarm")


def not_asked(numbers: Row) -> Markup | None:
    """Returns what this study did not ask, and what no study of this kind can test, each with its reason."""
    asked = [(row.get("name", ""), row.get("why", "")) for row in numbers.get("not_asked") or ()]
    testable = [(row.get("claim", ""), row.get("why", "")) for row in numbers.get("not_testable") or ()]
    if not asked and not testable:
        return None
    parts: list[Markup] = [tag("h2", "Not asked and not testable")]
    for title, rows in (("Not asked by this study", asked), ("Cannot be tested here", testable)):
        if rows:
            listed = (join(tag("dt", name), tag("dd", why)) for name, why in rows)
            parts += [tag("h3", title), tag("dl", *listed, class_="facts")]
    return join(*parts)


def summary(numbers: Row) -> Markup | None:
    """Returns a row of figures about the data and the size of the study."""
    data, arms = numbers.get("data") or {}, numbers.get("arms") or ()
    trained = sum(int(number(arm.get("seeds"))) for arm in arms if math.isfinite(number(arm.get("seeds"))))
    counts = {name: number(data.get(name)) for name in ("training", "test", "classes")}
    rows = [
        ("training images", counts["training"], str(data.get("name", ""))),
        ("test images", counts["test"], "judged once for each final cell"),
        ("classes", counts["classes"], ""),
        ("trainings compared", float(trained), plural(len(arms), "setting") + ", each with several seeds"),
    ]
    return list_figures(
        [(name, f"{value:,.0f}", gloss) for name, value, gloss in rows if math.isfinite(value) and value]
    )
