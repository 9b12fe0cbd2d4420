// Ranks what a search finds: guides, explanations, notebooks, the API, studies, the changelog, tables of results; then by
// the place where the words stand (title, heading, text), then in the order of the sidebar.
var Scorer = {
  kinds: [
    /^(experiments|benchmarks)\/(.*\/)?results\//,
    /^(CHANGELOG|CONTRIBUTING)$/,
    /^(experiments|benchmarks)\//,
    /^docs\/generated\//,
    /^notebooks\//,
    /^docs\/(maths\/|api$|command_line$|cite$)/,
    /^docs\//,
  ],
  score: ([page, title, anchor, description, score]) => {
    const links = [...document.querySelectorAll(".sidebar-tree a")].map((link) => link.getAttribute("href"));
    const place = links.indexOf(page + ".html");
    // The words are the whole title, or the name of a function or a class, which has a dot or an underscore.
    const words = new URLSearchParams(window.location.search).get("q");
    const isName = description !== null && score >= Scorer.objNameMatch && /[._]/.test(words);
    const kind = Scorer.kinds.findIndex((pattern) => pattern.test(page));
    return (isName || score === 100 ? 10000 : 0) + 1000 * kind + score + (place < 0 ? 0 : 1 - place / links.length);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
