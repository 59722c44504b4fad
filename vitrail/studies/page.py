"""The report page of `vitrail study`: verdicts with their intervals, a chart for each experiment, rates, attention, costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.markup import Markup, join, tag
from vitrail.reports import charts as draw
from vitrail.reports.charts import Axis, Estimates, Series, read_estimates
from vitrail.reports.components import describe_run, header, lead, list_figures, make_scrollable, notes
from vitrail.reports.facts import as_yaml, list_versions
from vitrail.reports.inspection.charts import distance_chart
from vitrail.reports.page import Section, frame, write_page
from vitrail.runtime.progress import duration
from vitrail.text import decimal, large, number, percent, plural, scientific, sentence, shorten, whole

Row = Mapping[str, Any]
COLOURS = ("cobalt", "amber", "emerald", "ruby", "violet")
# sign, class, colour and meaning; also the order of the tally
VERDICTS = {
    "held": ("✓", "holds", "emerald", "the interval supports the claim by the rule"),
    "did not hold": ("✗", "fails", "ruby", "the interval contradicts the claim by the rule"),
    "cannot tell": ("?", "unsure", "amber", "the interval is too wide, or a condition of the claim was not met"),
    "out of range": ("–", "open", "muted", "the study is too small to contradict the claim"),
}
MINUS, THIN = "\u2212", "\u202f"


def write_study_page(folder: Path, numbers: Row, costs: Row) -> Path:
    """Writes ``report.html`` and its charts as ``plots/*.svg`` into ``folder``; returns the path of the page. Raises `DiskError`.

    Args:
        numbers: the content of ``numbers.json``. Accuracies are fractions.
        costs: the content of ``costs.json``.
    """
    document, plots = build_page(numbers, costs)
    return write_page(folder, document, {re.sub(r"[^\w.+-]+", "-", name)[:100]: plot for name, plot in plots.items()})


def build_page(numbers: Row, costs: Row) -> tuple[str, dict[str, Markup]]:
    """Returns the whole document and its charts by name. What the study has not measured is left out."""
    plots: dict[str, Markup] = {}
    claims, data = numbers["claims"], numbers["data"]
    parts = {
        "Verdicts": show_verdicts(claims, data),
        "Experiments": show_experiments(numbers, plots),
        "Learning curves": show_curves(numbers, plots),
        "Learning rates": show_rates(numbers, plots),
        "Attention": show_heads(numbers, plots),
        "Positions": show_positions(numbers),
        "Published": show_published(numbers),
        "Settings": show_settings(numbers),
        "Cost": show_costs(numbers, costs),
        "Not asked": show_not_asked(numbers),
        "Method": join(tag("h2", "How figures were computed"), list_facts(numbers["checklist"], "item", "answer")),
        "Run details": show_run(numbers, costs),
    }
    sections = [Section(name, part) for name, part in parts.items() if part is not None]
    title = " on ".join(filter(None, (numbers["study"], data["name"])))
    opening = join(tally(claims), summarize(numbers), notes(list_warnings(numbers)))
    return frame("vitrail study", title, str(costs["date"]), opening, sections), plots


def spell(value: float, unit: str, *, signed: bool = True) -> str:
    """Formats a value of a unit, without the name of the unit. NaN is a dash."""
    if not math.isfinite(value):
        return "–"
    if unit == "ratio":
        return f"{value:.3g}×"
    if unit == "share":
        return percent(value)
    shown = f"{abs(100 * value):.1f}" if unit == "points" else f"{abs(value):.2f}"
    sign = MINUS if value < 0 else "+" if signed else ""
    return shown if not float(shown) else sign + shown


def spell_effect(effect: Row | None) -> str:
    """Formats an effect with its unit and, where it is known, its interval: "+2.3 points [+1.1, +3.5]"."""
    value, low, high = read_interval(effect)
    if effect is None or not math.isfinite(value):
        return "not measured"
    unit = effect["unit"]
    shown = f"{spell(value, unit)}{noun_of(unit)}"
    return f"{shown} [{spell(low, unit)}, {spell(high, unit)}]" if math.isfinite(low + high) else shown


def noun_of(unit: str) -> str:
    """Returns the name of a unit after its values, with a space before it; empty for those without a name."""
    return "" if unit in ("ratio", "share", "correlation") else f" {unit}"


def read_interval(row: Row | None) -> tuple[float, float, float]:
    """Returns ``estimate``, ``low`` and ``high``; what is missing is NaN."""
    estimate, low, high = (number((row or {}).get(name)) for name in ("estimate", "low", "high"))
    return estimate, low, high


def spell_rule(rule: Row, unit: str) -> str:
    """Describes where a claim holds: "at least 1.0 points"."""
    low, high, noun = number(rule["low"]), number(rule["high"]), noun_of(unit)
    if rule["kind"] == "ratio":
        side = "more" if low >= 1 else "less"
        return f"{side} than 1×; the paper says between {spell(low, unit)} and {spell(high, unit)}"
    if rule["kind"] == "equal":
        return f"within ±{spell(high, unit, signed=False)}{noun}"
    return f"at least {spell(low, unit, signed=False)}{noun}" if low else "more than no effect"


def badge(verdict: str, more: str = "") -> Markup:
    """Returns a verdict as a sign and a word in its colour."""
    sign, kind, *_ = VERDICTS[verdict]
    return tag("span", tag("span", sign, aria_hidden="true"), f" {verdict}{more}", class_=f"verdict {kind}")


def anchor_of(claim: Row) -> str:
    return "claim-" + re.sub(r"\W", "-", claim["name"].lower())


def tally(claims: Sequence[Row]) -> Markup:
    """Returns the headline: how many claims held, and the claims of each verdict with links to their cards."""
    if not claims:
        return tag("div", tag("p", "This study judges no claim."), class_="headline bare")
    found = {verdict: [claim for claim in claims if claim["verdict"] == verdict] for verdict in VERDICTS}
    held = tag("p", f"{len(found['held'])} of {len(claims)}", class_="figure-value")
    figure = tag("div", held, tag("p", f"{'claim' if len(claims) == 1 else 'claims'} held", class_="figure-name"))
    rows = []
    for verdict, own in found.items():
        links = [tag("li", tag("a", claim["name"], href=f"#{anchor_of(claim)}")) for claim in own]
        if links:
            meaning = lead(sentence(VERDICTS[verdict][3]), ".")
            rows.append(join(tag("dt", badge(verdict)), tag("dd", tag("ul", *links), meaning)))
    return tag("div", figure, tag("dl", *rows, class_="tally"), class_="headline tallied")


def summarize(numbers: Row) -> Markup | None:
    """Returns a row of figures about the data and the size of the study."""
    data, arms = numbers["data"], numbers["arms"]
    return list_figures(
        [
            ("training images", f"{data['training']:,}", data["name"]),
            ("test images", f"{data['test']:,}", "evaluated once for each final trial"),
            ("classes", f"{data['classes']:,}", ""),
            (
                "trials compared",
                f"{sum(arm['seeds'] for arm in arms):,}",
                f"{plural(len(arms), 'setting')}, each with its seeds",
            ),
        ]
    )


def list_warnings(numbers: Row) -> list[str]:
    """Returns the sentences that stand at the top of the page: mixed commits, earlier plans, failed trials."""
    commits, earlier, failures = numbers["commits"], numbers["plan"]["earlier"], numbers["failures"]
    changed = (
        f"The plan was changed {plural(len(earlier), 'time')} after trials had been trained; all hashes are below."
    )
    found = {
        f"The trials come from {len(commits)} commits of vitrail: {', '.join(commits)}.": len(commits) > 1,
        changed: earlier,
        f"{plural(len(failures), 'trial')} failed or diverged; see cost and time.": failures,
        **{f"Reduced to the budget: {change}.": True for change in numbers["plan"].get("reductions", ())},
    }
    return [warning for warning, holds in found.items() if holds]


def show_verdicts(claims: Sequence[Row], data: Row) -> Markup | None:
    """Returns the section of all claims."""
    if not claims:
        return None
    explained = (
        "Each claim was written down with its rule before the first final trial was trained. The strip shows the effect with its "
        "confidence interval and, in green, where the claim holds; of a ratio, the figure of the paper. Where several claims are "
        "judged they are decided at stricter levels than that of the interval (Holm), named below it. Every final trial was "
        f"evaluated once on {plural(data['test'], 'test image')}; learning rates were chosen on {data['validation']:,} others "
        "that no trial was trained on."
    )
    return join(tag("h2", "Verdicts"), lead(explained), tag("div", *map(show_claim, claims), class_="claims"))


def show_claim(claim: Row) -> Markup:
    """Returns the card of one claim."""
    verdict, effect = claim["verdict"], claim["effect"]
    fragile = verdict == "held" and claim["rate_robust"] == "no"
    head = tag(
        "div", tag("h3", claim["name"]), badge(verdict, ", rate-sensitive" if fragile else ""), class_="claim-head"
    )
    cite = tag("cite", claim["source"]) if claim["source"] else None
    quote = tag("blockquote", tag("p", "“", claim["quote"], "”"), cite) if claim["quote"] else None
    beside = [tag("li", f"{other['name']}: {spell_effect(other)}") for other in claim["beside"]]
    facts = {
        "Why": sentence(claim["why"]),
        "What would change it": sentence(claim["to_tell"]),
        "Caveat": claim["caveat"],
        "Beside it": tag("ul", *beside) if beside else "",
    }
    said = (join(tag("dt", name), tag("dd", fact)) for name, fact in facts.items() if fact)
    left = tag("div", quote, tag("p", claim["question"], class_="question"), tag("dl", *said, class_="said"))
    shown = tag("p", spell_effect(effect), class_="effect")
    right = tag("div", shown, draw_strip(claim, VERDICTS[verdict][2]), show_chips(claim))
    return tag("article", head, left, right, class_=f"claim-card {VERDICTS[verdict][1]}-edge", id=anchor_of(claim))


def draw_strip(claim: Row, colour: str) -> Markup | None:
    """Draws the effect over the zone in which the claim holds, or returns None without an interval."""
    values, rule = read_interval(claim["effect"]), claim["rule"]
    if not np.isfinite(values).all():
        return None
    unit, log = claim["effect"]["unit"], claim["effect"]["unit"] == "ratio"
    low, high = number(rule["low"]), number(rule["high"])
    if log and min(*values, low) <= 0:
        return None
    zone = low if math.isfinite(low) else -math.inf, high if math.isfinite(high) else math.inf
    ruled = f"Rule: {spell_rule(rule, unit)}."
    label = "the figure of the paper" if rule["kind"] == "ratio" else "the claim holds here"
    drawn = draw.zone_strip(values, zone, lambda value: spell(value, unit), colour=colour, none=1.0 if log else 0.0,
                             label=label, says=f"{spell_effect(claim['effect'])}. {ruled}", log=log)  # fmt: skip
    return tag("figure", drawn, tag("figcaption", ruled), class_="zone")


def show_chips(claim: Row) -> Markup:
    """Returns the facts about the figure: seeds, degrees of freedom, what could be detected, the rates, the regime."""
    effect = claim["effect"] or {}
    df, level, decided, seen = (
        number(value)
        for value in (effect.get("df"), effect.get("level"), claim.get("verdict_level"), claim["detectable"])
    )
    unit = effect.get("unit", "")
    facts = {
        "seeds": effect.get("seeds"),
        "degrees of freedom": f"{df:.3g}" if math.isfinite(df) else "",
        "interval": f"{100 * level:.4g}{THIN}%" if math.isfinite(level) else "",
        "decided at": f"{100 * decided:.4g}{THIN}%" if math.isfinite(decided) else "",
        "detectable": f"{spell(seen, unit, signed=False)}{noun_of(unit)}" if math.isfinite(seen) else "",
        "robust to the rate": claim["rate_robust"],
        "regime": claim["regime"],
        "experiment": claim["experiment"],
    }
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", fact)) for name, fact in facts.items() if fact), class_="chips"
    )


def label_of(row: Row, without: str = "") -> str:
    """Names an arm with its levels, except that of the factor ``without``."""
    levels = [f"{path.split('.')[-1]} {value}" for path, value in row["levels"].items() if path != without]
    return ", ".join([row["arm"], *levels])


def group_by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Returns the rows by key, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def show_experiments(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of accuracies, a chart for each experiment: by training images where it varies them, else by arm."""
    charts = {}
    for name, rows in group_by(numbers["arms"], lambda row: row["experiment"]).items():
        by_images = len({row["limit"] for row in rows}) > 1
        charts[f"arms-{name}"] = draw_by_images(name, rows) if by_images else draw_arms(name, rows)
    plots |= charts
    explained = f"Test accuracy of the arms of each experiment, the mean of their seeds with its 95{THIN}% interval."
    return show_charts("Accuracy by experiment", explained, charts)


def show_charts(title: str, explained: str, charts: Mapping[str, Markup]) -> Markup | None:
    """Returns a section of charts, or None without any."""
    if not charts:
        return None
    figures = tag("div", *(tag("figure", drawing) for drawing in charts.values()), class_="charts")
    return join(tag("h2", title), lead(explained), figures)


def draw_lines(title: str, lines: Mapping[str, Estimates], across: Axis, label: str, *, marked: bool = True) -> Markup:
    """Draws shares in [0, 1] over ``across``, one line with its intervals for each name."""
    series = [
        Series(name, own.x, own.y, COLOURS[at % len(COLOURS)], marked=marked, dashed=at >= len(COLOURS))
        for at, (name, own) in enumerate(lines.items())
    ]
    legend, top = draw.legend(series)
    values = np.concatenate([own.values for own in lines.values()])
    up = fit_axis(values, top, top + draw.HEIGHT - draw.TOP - draw.BOTTOM)
    drawn: list[Markup | None] = []
    for line, own in zip(series, lines.values()):
        drawn += [draw.band(own, across, up, line.colour), draw.error_bars(own, across, up, line.colour)]
        drawn.append(draw.draw_series(line, across, up, label))
    ends = ", ".join(f"{name} {percent(float(own.y[-1]))}" for name, own in lines.items() if len(own.y))
    frame_of_chart = (draw.heading(title), legend, draw.axes(across, up, label))
    return draw.svg(draw.WIDTH, up.start + draw.BOTTOM + 2, f"{title} by {label}: {ends}", *frame_of_chart, *drawn)


def fit_axis(values: np.ndarray, top: float, floor: float) -> Axis:
    """Returns a linear axis of shares that fits the finite values."""
    known = values[np.isfinite(values)]
    least, most = float(known.min()), float(known.max())
    return draw.vertical_axis(known, percent_of_tick, least=least, most=most, top=top, floor=floor)


def fit_log_axis(values: np.ndarray, words: Callable[[float], str]) -> Axis:
    """Returns a logarithmic axis with a mark at each value, as far as they have room."""
    axis = draw.log_axis(values, draw.LEFT, draw.WIDTH - draw.RIGHT, words, marks=values.tolist())
    return replace(axis, marks=draw.spread(axis.marks, axis))


def percent_of_tick(value: float) -> str:
    return f"{100 * value:.4g}{THIN}%"


def draw_by_images(name: str, rows: Sequence[Row]) -> Markup:
    """Draws the accuracies of all arms by the number of training images."""
    lines = {
        arm: read_estimates([{**row["accuracy"], "x": row["limit"]} for row in own])
        for arm, own in group_by(rows, lambda row: label_of(row, "data.limit")).items()
    }
    limits = np.unique(np.concatenate([own.x for own in lines.values()]))
    return draw_lines(name, lines, fit_log_axis(limits, whole), "training images")


def draw_arms(name: str, rows: Sequence[Row]) -> Markup:
    """Draws a dot with its interval for each arm, one below the other."""
    names = [draw.fit(label_of(row), 180.0, 12) for row in rows]
    values = np.array([read_interval(row["accuracy"]) for row in rows])
    left = max(60.0, 14 + 12 * draw.WIDEST * max(map(draw.length_of, names)))
    top, height = 34.0, 24.0
    floor = top + height * len(rows)
    across = replace(fit_axis(values, 0, 0), start=left, stop=draw.WIDTH - 62.0)
    drawn = [draw.heading(draw.fit(name, draw.WIDTH, 13.5))]
    for mark in across.ticks():
        x = float(across.place(mark))
        drawn += [draw.line(x, top, x, floor), draw.text(x, floor + 16, percent_of_tick(mark), anchor="middle")]
    for at, (arm, (estimate, low, high)) in enumerate(zip(names, values.tolist())):
        y = top + height * (at + 0.5)
        drawn.append(draw.text(left - 12, y + 4, arm, colour="ink", size=12, anchor="end"))
        if math.isfinite(low + high):
            ends = float(across.place(low)), y, float(across.place(high)), y
            drawn.append(draw.line(*ends, "cobalt", stroke_width=5, stroke_linecap="round", opacity=0.35))
        says = f"{arm}: {percent(estimate)} [{percent(low)}, {percent(high)}]"
        drawn.append(draw.dot(float(across.place(estimate)), y, "cobalt", says, 4))
        drawn.append(draw.text(draw.WIDTH, y + 4, percent(estimate), colour="ink", size=12, anchor="end"))
    says = f"{name}: " + ", ".join(f"{arm} {percent(float(value[0]))}" for arm, value in zip(names, values))
    return draw.svg(draw.WIDTH, floor + 22, says, *drawn)


def show_curves(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of the accuracy on training images during the first training of each setting."""
    charts = {}
    for name, rows in group_by(numbers["arms"], lambda row: row["experiment"]).items():
        lines = {
            label_of(row): read_estimates([{"x": p["step"], "estimate": p["train_accuracy"]} for p in row["curve"]])
            for row in rows
            if row["curve"]
        }
        if lines:
            last = max(float(own.x.max()) for own in lines.values())
            across = Axis(0.0, last, draw.LEFT, draw.WIDTH - draw.RIGHT, least_step=1, words=whole)
            charts[f"curves-{name}"] = draw_lines(name, lines, across, "step")
    plots |= charts
    explained = (
        "Accuracy on the network's own training images, without augmentation, during the first training of each setting. A curve "
        "that still rises steeply when training ends is of an undertrained network: no claim about it is decided."
    )
    return show_charts("Learning curves", explained, charts)


def show_rates(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of accuracy by learning rate, a chart for each experiment."""
    charts, edges = {}, [f"{row['arm']} in {row['experiment']}" for row in numbers["rates"] if row["edge"]]
    for name, rows in group_by(numbers["rates"], lambda row: row["experiment"]).items():
        lines = {
            row["arm"]: read_estimates([{"x": p["lr"], "estimate": p["accuracy"]} for p in row["points"]])
            for row in rows
        }
        lines = {arm: own for arm, own in lines.items() if len(own.values)}
        if lines:
            rates = np.unique(np.concatenate([own.x for own in lines.values()]))
            across = fit_log_axis(rates, scientific)
            charts[f"rates-{name}"] = draw_lines(name, lines, across, "learning rate")
    plots |= charts
    explained = (
        "Validation accuracy by learning rate, with the same grid, seed and length for every arm. A comparison is fair where the "
        "optima lie inside of the grid. Chosen, by NLL: "
    )
    chosen = dict.fromkeys(f"{row['arm']} {scientific(number(row['best']))}" for row in numbers["rates"])
    edge = f" At the edge of its grid, so that a better rate may lie outside: {', '.join(edges)}." if edges else ""
    return show_charts("Learning rates", f"{explained}{', '.join(chosen)}.{edge}", charts)


def show_heads(numbers: Row, plots: dict[str, Markup]) -> Markup | None:
    """Returns the section of attention distances by depth, where they were measured."""
    charts = {}
    for at, row in enumerate(numbers["heads"], 1):
        layers = [
            HeadFigures(torch.tensor(layer["distance"]), layer["uniform"], torch.empty(0), torch.empty(0))
            for layer in row["layers"]
        ]
        charts[f"heads-{at:02}-{row['model']}"] = distance_chart(layers, row["model"])
    plots |= charts
    explained = (
        "Mean attention distance of each head, by depth (the paper's figures 7 and 11). The dashed line is the distance of "
        "attention that is uniform over the image."
    )
    return show_charts("Attention by depth", explained, charts)


def show_table(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, text: int = 1, **more: Any
) -> Markup:
    """Returns a table; the first cell of each row is its heading, and the first ``text`` columns are text."""
    body = [
        tag(
            "tr",
            tag("th", first, scope="row"),
            *(tag("td", cell, class_="text" if at < text else None) for at, cell in enumerate(rest, 1)),
        )
        for first, *rest in rows
    ]
    return make_scrollable(tag("table", header(columns, text=text, **more), tag("tbody", *body)), name)


def show_positions(numbers: Row) -> Markup | None:
    """Returns the section of what position embeddings learned, where it was measured."""
    rows = [
        (
            row["model"],
            percent(row["neighbour_rate"]),
            percent(row["untrained_neighbour_rate"]),
            decimal(row["row_column_excess"], 2),
        )
        for row in numbers["positions"]
    ]
    if not rows:
        return None
    explained = (
        "How often the most similar other position of a patch is adjacent to it, beside the same network before training; and by "
        "how much positions of the same row or column are more similar than others (figure 7)."
    )
    columns = ("model", "neighbours, trained", "neighbours, untrained", "row and column excess")
    return join(tag("h2", "Position embeddings"), lead(explained), show_table("Position embeddings", columns, rows))


def show_published(numbers: Row) -> Markup | None:
    """Returns the section of the paper's own table 6, fitted again."""
    rows = [
        (row["name"], spell_effect(row), *map(decimal, row["slopes"]), decimal(row["equal_slopes"], 2))
        for row in numbers["published"]
    ]
    if not rows:
        return None
    explained = (
        "The paper's table 6, fitted with the code of this study and no training: how many times less compute ViT needs than "
        "ResNets for equal accuracy (the paper says 2 to 4), and the gain in logits for each factor e of FLOPs; intervals by "
        "bootstrap over its 13 models. These figures are the paper's own, and not among the claims tested here. If slopes "
        "differ, the ratio depends on the compute at which it is read."
    )
    columns = ("metric", "compute ratio", "slope, ViT", "slope, ResNet", "p, equal slopes")
    table = show_table("Compute ratios of the published table", columns, rows)
    return join(tag("h2", "The published table, fitted again"), lead(explained), table)


def show_settings(numbers: Row) -> Markup | None:
    """Returns the table of all settings with their accuracies, regimes, costs and learning rates."""
    rows = []
    for row in numbers["arms"]:
        accuracy, low, high = read_interval(row["accuracy"])
        interval = join(tag("br"), tag("small", f"{percent(low)} to {percent(high)}")) if math.isfinite(low) else None
        gap, regime = number(row["train"]) - accuracy, "undertrained" if row["undertrained"] else row["regime"]
        name = join(label_of(row, "data.limit"), tag("span", row["experiment"], class_="gloss"))
        figures = (f"{row['limit']:,}", row["seeds"], join(percent(accuracy), interval), percent(number(row["train"])))
        costs = (large(row["macs6"]), large(row["flops"]), large(row["parameters"]), scientific(number(row["rate"])))
        rows.append((name, regime, *figures, spell(gap, "points"), *costs))
    if not rows:
        return None
    explained = (
        "Every setting, the mean of its seeds. Data-limited: the gap between training and test accuracy is large, so that more "
        "images would help; compute-limited: training ended before the network fitted its own images; undertrained: before "
        "learning slowed down. FLOPs are 6 × multiply-adds × images seen; beside them the operations that were executed."
    )
    columns = ("arm", "regime", "images", "seeds", "test", "training", "gap", "FLOPs", "executed", "parameters", "rate")
    table = show_table("Settings and regimes", columns, rows, text=2)
    return join(tag("h2", "Settings and regimes"), lead(explained), table)


def show_costs(numbers: Row, costs: Row) -> Markup | None:
    """Returns the section of the time that the study took, beside what was foreseen, and of the trials that failed."""
    trials, failures = costs["trials"], numbers["failures"]
    if not trials:
        return None
    used, predicted, budget = (number(costs[f"{name}_seconds"]) for name in ("total", "predicted", "budget"))
    again = sum(trial["attempts"] > 1 for trial in trials)
    attempts = f"{again:,} of them needed more than one attempt" if again else "each trained in one attempt"
    figures = [
        ("time of all trainings", duration(used), "of which several may run at once"),
        ("time predicted", duration(predicted) if predicted > 0 else "", "of the clock, before the first trial"),
        ("budget", duration(budget) if budget > 0 else "", ""),
        ("FLOPs executed", large(costs["flops"]), "of all trainings"),
        ("trials", f"{len(trials):,}", attempts),
    ]
    machines = ", ".join(sorted({" on ".join(filter(None, (trial["device"], trial["host"]))) for trial in trials}))
    rows = []
    for name, own in group_by(trials, lambda trial: f"{trial['experiment']}, {trial['kind']}").items():
        spent = sum(trial["seconds"] for trial in own)
        rows.append((name, f"{len(own):,}", duration(spent), percent(spent / (used or 1.0), 0)))
    table = show_table("Time by experiment", ("experiment", "trials", "training time", "share of the time"), rows)
    failed = [
        (row["arm"], row["experiment"], shorten(row["trial"], 13), row["state"], row["error"]) for row in failures
    ]
    columns = ("arm", "experiment", "trial", "state", "error")
    return join(
        tag("h2", "Cost and time"),
        lead(f"Trained with {machines}."),
        list_figures([row for row in figures if row[1]]),
        tag("div", table, class_="after"),
        show_table("Trials that failed or diverged", columns, failed, text=5)
        if failed
        else lead("No trial failed or diverged."),
    )


def list_facts(rows: Sequence[Row], name: str, fact: str) -> Markup:
    return tag("dl", *(join(tag("dt", row[name]), tag("dd", row[fact])) for row in rows), class_="facts")


def show_not_asked(numbers: Row) -> Markup | None:
    """Returns what this study did not ask, and what no study of this kind can test, each with its reason."""
    titled = {"Not asked by this study": numbers["not_asked"], "Cannot be tested here": numbers["not_testable"]}
    parts = [join(tag("h3", title), list_facts(rows, "name", "why")) for title, rows in titled.items() if rows]
    return join(tag("h2", "Not asked and not testable"), *parts) if parts else None


def show_run(numbers: Row, costs: Row) -> Markup:
    """Returns the run details: the plan and its earlier versions, data, commits, machine and settings."""
    data = numbers["data"]
    counts = ", ".join(f"{data[name]:,} {name}" for name in ("training", "validation", "test"))
    rows = {
        "Study": numbers["study"],
        "Plan": numbers["plan"]["sha256"],
        "Earlier plans": ", ".join(numbers["plan"]["earlier"]),
        "Data": f"{data['name']}: {counts}",
        "Commits": ", ".join(numbers["commits"]),
        "Machine": costs["machine"],
        "Versions": list_versions(costs["versions"]),
        "Files": "numbers.json has all figures in full precision, trials.csv a row for each trial, plots/ the charts",
    }
    settings = tag("pre", tag("code", as_yaml(numbers["base"])))
    details = tag("details", tag("summary", "Settings of every trial"), settings)
    return join(describe_run(str(costs["command"] or ""), rows), details)
