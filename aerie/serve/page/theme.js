/* Sets the theme that the reader chose before anything is drawn. */
"use strict";
try {
  const theme = JSON.parse(localStorage.getItem("aerie.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* a browser without storage has the theme of the system */ }
