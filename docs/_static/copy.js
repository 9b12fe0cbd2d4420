// A button on each block of code that copies it, without the prompts of a Python session and what it printed.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const lines = block.querySelector("pre").innerText.split("\n");
    const session = lines.some((line) => line.startsWith(">>> "));
    const typed = lines.filter((line) => !session || /^(>>>|\.\.\.)( |$)/.test(line));
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(typed.map((line) => (session ? line.slice(4) : line)).join("\n").trimEnd());
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
});
