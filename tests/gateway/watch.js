// Keeps the words that are marked in `marked`, and those outside of their caption's window in `outside`.
(() => {
  window.outside = [];
  window.marked = new Set();
  const look = () => {
    const text = document.querySelector(".text");
    const now = text?.querySelector(".now");
    if (now) {
      text.style.scrollBehavior = "auto";
      marked.add(now.textContent);
      const [a, b] = [text.getBoundingClientRect(), now.getBoundingClientRect()];
      if (b.top < a.top - 1 || b.bottom > a.bottom + 1 || a.top < 0 || a.bottom > innerHeight)
        outside.push(now.textContent);
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
