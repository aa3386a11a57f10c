"""Charts of memory and of loading."""

from __future__ import annotations

from turnout.perf import wording
from turnout.perf.page.marks import DRAWN, MARGIN, colour, rounded, thinned_note, trace, unit_of, xy
from turnout.perf.page.parts import Chart
from turnout.perf.page.series import labels, thinned
from turnout.perf.report import Report

LOAD_PARTS = ("registration", "preparation", "config", "model", "tokenizer")


def memory(report: Report) -> Chart | None:
    """Memory of every route's process over time, where it was sampled."""
    sampled = [
        (index, route.memory.samples)
        for index, route in enumerate(report.routes)
        if route.memory is not None and route.memory.samples
    ]
    if not sampled:
        return None
    largest = max(sample.rss_bytes for _, samples in sampled for sample in samples)
    factor, unit = (1e-9, "GB") if largest >= 1e9 else (1e-6, "MB")
    limit = max(DRAWN // (2 * len(sampled)), 2)
    data = []
    for index, samples in sampled:
        rss = [(sample.at_s, float(sample.rss_bytes)) for sample in samples]
        private = [
            (sample.at_s, float(sample.private_bytes))
            for sample in samples
            if sample.private_bytes is not None
        ]
        for points, dash, kind in ((rss, "solid", "RSS"), (private, "dot", "private")):
            few = thinned(points, limit)
            if few:
                xs, ys = [x for x, _ in few], [y * factor for _, y in few]
                line = {"color": colour(index), "width": 1.8, "dash": dash}
                hover = xy(xs, ys, f"{unit} {kind}")
                mode = "lines" if len(few) > 1 else "markers"
                data.append({**trace(report, index), "mode": mode, "line": line, **hover})
    peaks = [
        f"{report.routes[index].name}: at most {wording.size(max(s.rss_bytes for s in samples))}"
        for index, samples in sampled
    ]
    note = "Solid: RSS. Dotted: private memory."
    thin = thinned_note(max(len(samples) for _, samples in sampled), limit)
    return Chart(
        "Memory over time",
        f"RSS of each route's process. {'; '.join(peaks)}.",
        data,
        {
            "xaxis": {"title": "seconds since the start"},
            "yaxis": {"title": unit, "rangemode": "tozero"},
        },
        note=f"{note} {thin}".strip(),
    )


def load(report: Report) -> Chart | None:
    """What loading each route took, step by step, as bars."""
    loads = [(i, route.load) for i, route in enumerate(report.routes) if route.load is not None]
    if not loads:
        return None
    factor, unit = unit_of([spans.total_s for _, spans in loads])
    names = labels(report)
    places = list(range(len(loads)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": places,
            "x": rounded(getattr(spans, f"{part}_s") * factor for _, spans in loads),
            "width": 0.42,
            "marker": {"color": f"@p{number}"},
            "hovertemplate": f"%{{x:.4~g}} {unit}<extra>{part}</extra>",
        }
        for number, part in enumerate(LOAD_PARTS)
    ]
    titles = [
        {
            "text": names[index],
            "x": 0,
            "y": place,
            "yshift": 23,
            "xanchor": "left",
            "showarrow": False,
            "font": {"color": "@ink"},
        }
        for place, (index, _) in zip(places, loads, strict=True)
    ]
    said = [f"{report.routes[i].name}: {wording.seconds(spans.total_s)}" for i, spans in loads]
    return Chart(
        "Load, step by step",
        f"{'; '.join(said)}.",
        data,
        {
            "barmode": "stack",
            "margin": {**MARGIN, "l": 12},
            "annotations": titles,
            "xaxis": {"title": unit, "rangemode": "tozero"},
            "yaxis": {"range": [len(loads) - 0.5, -0.8], "visible": False},
        },
        height=90 + 58 * len(loads),
        legend=[(part, f"@p{number}") for number, part in enumerate(LOAD_PARTS)],
    )
