"use strict";
const search = document.getElementById("search");
const found = document.getElementById("found");
const articles = [...document.querySelectorAll("article")];
// With the name of the phase, which stands above.
const texts = articles.map((article) =>
  `${article.textContent} ${article.parentElement.firstElementChild.textContent}`.toLowerCase());

search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  articles.forEach((article, place) => {
    article.hidden = !words.every((word) => texts[place].includes(word));
    shown += !article.hidden;
  });
  if (words.length) document.querySelectorAll("details").forEach((run) => { run.open = true; });
  found.textContent = words.length ? `${shown} of ${articles.length}` : "";
});

// A picture leads to a turn of a run that may be folded.
addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  const run = target && target.closest("details");
  if (run) run.open = true;
  if (target) { target.hidden = false; target.scrollIntoView(); }
});
