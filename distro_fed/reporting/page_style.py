"""Style sheet of the HTML report: light and dark, by what the reader's system prefers."""

from __future__ import annotations

#: Colours of Okabe and Ito, which colour-blind readers tell apart; brighter on a dark page.
STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5c6675; --rule: #e3e7ec; --good: #0a7d4f; --bad: #b3261e;
  --c0: #0072b2; --c1: #d88a00; --c2: #009e73; --c3: #b8578f; --c4: #3fa3dc; --c5: #d55e00; --many: #8b95a5; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151b; --card: #1a2029; --ink: #e8ecf1; --soft: #9aa5b4; --rule: #2c3542; --good: #4fc38f; --bad: #ff8a80;
  --c0: #4aa3df; --c1: #f0b132; --c2: #2fc79b; --c3: #e39ac2; --c4: #8cd0f5; --c5: #f58549; --many: #6c7787; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { margin: 0; font-size: 27px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 0 0 10px; font-size: 16px; }
p { margin: 6px 0; } .soft, .note { color: var(--soft); } .note { font-size: 13px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 16px; margin: 22px 0; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 18px 20px; min-width: 0; }
.card .figure { font-size: 29px; line-height: 1.2; font-weight: 650; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 16px; }
section.card { margin-top: 16px; } .charts section.card { margin-top: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child, .words { text-align: left; } th:first-child, td:first-child { padding-left: 0; }
td.words { white-space: normal; } tfoot td { font-weight: 650; }
tbody:last-child tr:last-child td, tfoot td { border: 0; }
td.name { overflow-wrap: anywhere; white-space: normal; min-width: 9em; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 2px 28px; margin: 10px 0 0; }
dl div { display: flex; justify-content: space-between; gap: 12px; padding: 3px 0;
  border-bottom: 1px solid var(--rule); }
dt { color: var(--soft); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 8px; padding: 0; list-style: none;
  font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.legend i { width: 18px; height: 0; border-top: 3px solid var(--line); border-radius: 2px; }
.legend .train i { border-top-style: dashed; }
svg { display: block; width: 100%; height: auto;
  font: 13px system-ui, -apple-system, "DejaVu Sans", Arial, sans-serif; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .tick, svg .marker-label { fill: var(--soft); } svg .label { fill: var(--ink); }
svg .marker { stroke: var(--soft); stroke-dasharray: 2 4; }
svg polyline { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
svg circle { fill: var(--line); } svg .reach { fill: transparent; } svg .dot:hover circle { r: 6px; }
.c0 { --line: var(--c0); } .c1 { --line: var(--c1); } .c2 { --line: var(--c2); }
.c3 { --line: var(--c3); } .c4 { --line: var(--c4); } .c5 { --line: var(--c5); }
.many { --line: var(--many); } svg .many polyline { stroke-width: 1; opacity: 0.45; }
svg .many .dot circle:not(.reach) { opacity: 0; }
.mean { --line: var(--ink); } svg .mean polyline { stroke-width: 3.5; }
.train { --line: var(--soft); } svg .train polyline { stroke-dasharray: 5 4; stroke-width: 1.5; }
svg .train .dot circle:not(.reach) { r: 2px; }
"""
