"""Measure pages in headless Chromium: one page of this machine holds each of them in a frame, and reports."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 900
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="There is no Chromium here: `apt-get install chromium` installs it; pages were not measured.",
)

# A frame of one width is to a page what a window of that width is, its media queries included.
_HARNESS = """<!DOCTYPE html><meta charset="utf-8">
<iframe id="frame" style="height: 900px; border: 0"></iframe><pre id="result"></pre>
<script>
const frame = document.getElementById("frame");
const load = (url) => new Promise((done) => { frame.onload = done; frame.src = url; });
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
(async () => {
  const found = {};
  try { SCRIPT } catch (error) { found.error = String(error); }
  document.getElementById("result").textContent = "RESULT" + JSON.stringify(found) + "END";
})();
</script>
"""

_SITE = """
  found.wide = []; found.search = {};
  for (const page of PAGES) {
    frame.style.width = WIDTHS[0] + "px";
    await load(SITE + page);
    const root = frame.contentDocument.documentElement;
    for (const width of WIDTHS) {
      frame.style.width = width + "px";
      if (root.scrollWidth > width) found.wide.push([page, width, root.scrollWidth]);
    }
  }
  for (const word of WORDS) {
    await load(SITE + "search.html?q=" + word);
    const results = () => [...frame.contentDocument.querySelectorAll("#search-results li a")];
    for (let i = 0; i < 100 && !results().length; i++) await pause(100);
    await pause(2000); // the rest of the results
    found.search[word] = results().map((a) => a.getAttribute("href"));
  }
"""

# A word is a run of characters of one text node without blanks and hyphens: what <wbr> divides are several.
_LAYOUT = """
  found.faults = []; found.cells = 0;
  for (const page of PAGES) for (const width of WIDTHS) {
    frame.style.width = width + "px";
    await load(page);
    const there = frame.contentDocument, root = there.documentElement;
    const name = page.split("/").pop();
    const fault = (kind, text, by) => found.faults.push([name, width, kind, text.trim().slice(0, 60), by]);
    for (const details of there.querySelectorAll("details")) details.open = true;
    if (root.scrollWidth > width) fault("wide page", "", root.scrollWidth - width);
    for (const box of there.querySelectorAll("main *, body > *"))
      if (box.clientWidth && ["auto", "scroll"].includes(frame.contentWindow.getComputedStyle(box).overflowX)
          && box.scrollWidth > box.clientWidth + 1)
        fault("sideways", box.textContent, box.scrollWidth - box.clientWidth);
    for (const cell of there.querySelectorAll("th, td, dt, dd, h1, h2, h3, figcaption, .notice p")) {
      const box = cell.getBoundingClientRect();
      if (!box.width) continue;
      found.cells++;
      const range = there.createRange();
      range.selectNodeContents(cell);
      const inside = range.getBoundingClientRect();
      if (inside.width && (inside.right > box.right + 1 || inside.left < box.left - 1))
        fault("cut", cell.textContent, inside.right - box.right);
      const texts = there.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      for (let node = texts.nextNode(); node; node = texts.nextNode())
        for (const word of node.data.matchAll(/[^\\s-]+/g)) {
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
          if (lines.size > 1) fault("broken word", word[0], lines.size);
        }
    }
  }
"""


def ask(script, folder, **values):
    """Run a script in headless Chromium, and return the object `found` that it fills.

    The script is the body of an asynchronous function with `frame`, `load(url)`, `pause(milliseconds)` and `found`, and
    the values are its constants; the folder is for the harness and the profile of Chromium.
    """
    if values:
        script = re.sub("|".join(rf"\b{name}\b" for name in values), lambda match: json.dumps(values[match[0]]), script)
    harness = folder / "harness.html"
    harness.write_text(_HARNESS.replace("SCRIPT", script))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={SECONDS * 1000}"]
    done = subprocess.run(
        [CHROMIUM, *options, harness.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    found = json.loads(html.unescape(re.search("RESULT(.*?)END", done.stdout, re.DOTALL)[1]))
    assert "error" not in found, found["error"]
    return found


def measure(site, pages, widths, words, folder):
    """Measure pages of a built site at widths of the window in pixels, and search them for words.

    Found are "wide", [page, width of window, width of page] where the page is wider, and "search", each word's results.
    """
    return ask(_SITE, folder, PAGES=pages, WIDTHS=widths, WORDS=words, SITE=f"{site.as_uri()}/")


def layout(paths, widths, folder):
    """Measure the cells and headings of pages at widths of the window in pixels, with all details open.

    Found are "faults", [file, width of window, kind, text, size]: a page wider than the window ("wide page"), a box
    that scrolls sideways ("sideways"), text outside its cell ("cut"), a word over several lines ("broken word"); and
    "cells", the number of cells and headings that were measured.
    """
    return ask(_LAYOUT, folder, PAGES=[path.resolve().as_uri() for path in paths], WIDTHS=list(widths))
