"""The result of a ladder as text: tables for the terminal and the page."""

import math
from collections.abc import Mapping
from typing import Any

from registry.records.quantities import amount
from registry.tool import render
from runners.reports.results import title

RUNS = ("width", "parameters", "tokens", "FLOPs", "updates", "loss", "law", "error")
ADVICE = ("FLOPs", "width", "parameters", "tokens", "updates", "loss", "80% interval")


def show(summary: Mapping[str, Any]) -> None:
    """Prints the runs, the law, what it predicts and advises, and the errors of failed runs."""
    out = render.console()
    columns, rows = run_table(summary)
    out.print(render.table(columns, rows, title=f"{title(summary)}: validation loss by width and FLOPs", right=columns))
    for folder, error in summary["errors"].items():
        out.print(f"{folder} failed: {error}", markup=False, soft_wrap=True)
    for sentence in sentences(summary):
        out.print(sentence, markup=False, highlight=False)
    if summary["advice"]:
        out.print(render.table(ADVICE, advice_rows(summary), title="Best width by the law", right=ADVICE))


def run_table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the columns and rows of the runs."""
    rate = ("rate",) if summary["rates"] else ()
    rows = [
        (
            f"{row['width']}{' (held out)' if row['held_out'] else ''}",
            amount(row["parameters"]),
            amount(row["tokens"]),
            f"{row['flops']:.3g}",
            f"{row['steps']:,}",
            *(["" if row["rate"] is None else f"{row['rate']:.4g}"] if rate else []),
            "failed" if row["loss"] is None else f"{row['loss']:.4f}",
            f"{row['predicted']:.4f}" if "predicted" in row else "",
            "" if row.get("error") is None else f"{row['error']:+.2%}",
        )
        for row in summary["rows"]
    ]
    return (*RUNS[:5], *rate, *RUNS[5:]), rows


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Returns the result in sentences: the law with its intervals, its exponents, the runs that were held out."""
    law = summary["law"]
    if law is None:
        return ["The runs do not determine a law, which needs eight runs of three widths and three numbers of tokens."]
    alpha, beta, a = (law[name] for name in ("alpha", "beta", "size_exponent"))
    found = [
        f"L(N, D) = {law['E']['value']:.3f} + {law['A']['value']:.4g} / N^{alpha['value']:.3f} + "
        f"{law['B']['value']:.4g} / D^{beta['value']:.3f}, in nats per token",
        f"alpha {_range(alpha)}, beta {_range(beta)}: 10th to 90th percentile of {law['resamples']} resamples",
        f"Best N ~ FLOPs^{a['value']:.2f} by the law ({_range(a)})"
        + ("." if (b := summary["size_exponent"]) is None else f", FLOPs^{b:.2f} by the parabolas."),
    ]
    fitted = [row["error"] for row in summary["rows"] if not row["held_out"] and row["error"] is not None]
    spread = math.sqrt(sum(error**2 for error in fitted) / len(fitted))
    found.append(f"The {len(fitted)} losses that were fitted differ from the law by {spread:.2%} (root mean square).")
    if not law["is_determined"]:
        found.append(
            "E or an exponent is at its bound: the runs do not determine it. Add widths, or budgets farther apart."
        )
    if edges := sum(row["at_edge"] for row in summary["rows"]):
        found.append(f"The best rate of {edges} of {len(summary['rows'])} rungs is at the edge. Add rates beyond it.")
    for row in summary["rows"]:
        if row["held_out"] and row["error"] is not None:
            low, high = row["interval"]
            found.append(
                f"Held out: width {row['width']} with {row['flops']:.3g} FLOPs has loss {row['loss']:.4f}; the law "
                f"predicts {row['predicted']:.4f} ({low:.4f} to {high:.4f}), an error of {row['error']:+.2%}."
            )
    return found


def advice_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the rows of the table of advice, with the columns ADVICE."""
    rows = []
    for each in summary["advice"]:
        if each["width"] is None:
            rows.append((f"{each['budget']:.3g}", "none: too few FLOPs", "", "", "", "", ""))
            continue
        low, high = each["interval"]
        rows.append(
            (
                f"{each['budget']:.3g}",
                str(each["width"]),
                amount(each["parameters"]),
                amount(each["tokens"]),
                f"{each['steps']:,}",
                f"{each['loss']:.4f}",
                f"{low:.4f} to {high:.4f}",
            )
        )
    return rows


def _range(number: Mapping[str, Any]) -> str:
    low, high = number["interval"]
    return f"{low:.3f} to {high:.3f}"
