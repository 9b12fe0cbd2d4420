"""Measure built pages in headless Chromium: one page of this machine holds each of them in a frame, and reports."""

import json
import re
import shutil
import subprocess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 900

# A frame of one width is to a page what a window of that width is, its media queries included.
HARNESS = """<!DOCTYPE html><meta charset="utf-8">
<iframe id="frame" style="height: 900px; border: 0"></iframe><pre id="result"></pre>
<script>
const pages = PAGES, widths = WIDTHS, words = WORDS, site = SITE;
const frame = document.getElementById("frame");
const load = (url) => new Promise((done) => { frame.onload = done; frame.src = url; });
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
(async () => {
  const found = { wide: [], search: {} };
  for (const page of pages) {
    frame.style.width = widths[0] + "px";
    await load(site + page);
    const root = frame.contentDocument.documentElement;
    for (const width of widths) {
      frame.style.width = width + "px";
      if (root.scrollWidth > width) found.wide.push([page, width, root.scrollWidth]);
    }
  }
  for (const word of words) {
    await load(site + "search.html?q=" + word);
    const results = () => [...frame.contentDocument.querySelectorAll("#search-results li a")];
    for (let i = 0; i < 100 && !results().length; i++) await pause(100);
    await pause(2000); // the rest of the results
    found.search[word] = results().map((a) => a.getAttribute("href"));
  }
  document.getElementById("result").textContent = "RESULT" + JSON.stringify(found) + "END";
})();
</script>
"""


def measure(site, pages, widths, words, folder):
    """Headless Chromium on a built site.

    Args:
      site: the folder of the site.
      pages: paths in it.
      widths: of the window, in pixels.
      words: to search for.
      folder: for the harness and the profile of Chromium.

    Returns:
      "wide": [page, width of window, width of page] where the page is wider; "search": the results of each word.
    """
    values = {"PAGES": pages, "WIDTHS": widths, "WORDS": words, "SITE": f"{site.as_uri()}/"}
    harness = folder / "harness.html"
    harness.write_text(re.sub("|".join(values), lambda match: json.dumps(values[match[0]]), HARNESS))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={SECONDS * 1000}"]
    done = subprocess.run(
        [CHROMIUM, *options, harness.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return json.loads(re.search("RESULT(.*?)END", done.stdout, re.DOTALL)[1])
