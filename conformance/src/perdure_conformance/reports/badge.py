"""A report as a badge: the levels that were granted, as SVG."""

from __future__ import annotations

from html import escape

from perdure_conformance.levels import Standing
from perdure_conformance.reports.model import Report, Verdict

LABEL = "perdure"
GREEN, RED, GREY = "#2e7d32", "#c62828", "#616161"
CHARACTER = 6.6
"""About how wide a character of the badge is."""


def badge_text(report: Report) -> tuple[str, str]:
    """Return what a badge says, and its colour. It never says more than was granted."""
    if report.verdict in (Verdict.FAILED, Verdict.OPENER_FAILED):
        failed = len(report.errors)
        return f"{failed} law{'s'[: failed != 1]} failed", RED
    granted = [level.name for level in report.levels if level.standing is Standing.GRANTED]
    if "complete" in granted:
        granted.remove("plain")
    return (" · ".join(granted), GREEN) if granted else ("no level", GREY)


def badge_svg(report: Report) -> str:
    """Return a badge as SVG, without any font or picture from elsewhere."""
    text, colour = badge_text(report)
    left, right = (round(len(part) * CHARACTER + 12) for part in (LABEL, text))
    versions, profile = report.versions, report.profile
    title = (
        f"{LABEL}: {text} (perdure-conformance {versions.kit}, contract {versions.contract}, profile {profile.name}, "
        f"{report.started_at.date().isoformat()}, {report.seconds:.0f} s, seed {profile.seeds[0]})"
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{escape(f"{LABEL}: {text}")}">
  <title>{escape(title)}</title>
  <clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#r)">
    <rect width="{left}" height="20" fill="#424242"/>
    <rect x="{left}" width="{right}" height="20" fill="{colour}"/>
  </g>
  <g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
    <text x="{left / 2:g}" y="14">{LABEL}</text>
    <text x="{left + right / 2:g}" y="14" textLength="{right - 12}">{escape(text)}</text>
  </g>
</svg>
"""
