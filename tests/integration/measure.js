// What can be measured of a page that is shown; each function gives what JSON can hold.
(() => {
  const box = (node) => node.getBoundingClientRect();
  const seen = (node) => box(node).width > 0 && box(node).height > 0;
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parsed = (colour) => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    return parts.length >= 3 && parts[3] !== 0 ? parts.slice(0, 3) : null;
  };
  const ground = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parsed(getComputedStyle(each).backgroundColor);
      if (colour) return colour;
    }
    return [255, 255, 255];
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  // The words of figures that are seen; a label without room for them has them below its box.
  const labels = (root = document) => all(".beside span, .drawing span", root).filter(
    (span) => seen(span) && box(span).top < box(span.parentElement).bottom - 1
  );
  // Where the words of a label are: as wide as its letters, as high as its line.
  const inked = (span) => {
    const range = document.createRange();
    range.selectNodeContents(span);
    const { left, right } = box(range), { top, bottom } = box(span);
    return { left, right, top, bottom };
  };
  // Of a label: the filled shape below its middle that was drawn last.
  const shapeBelow = (label) => {
    const at = box(label), x = at.x + at.width / 2, y = at.y + at.height / 2;
    const shapes = all("rect", label.closest(".plot")).filter((rect) => {
      const own = box(rect);
      return own.left <= x && x <= own.right && own.top <= y && y <= own.bottom
        && parsed(getComputedStyle(rect).fill);
    });
    const last = shapes.pop();
    return last ? parsed(getComputedStyle(last).fill) : ground(label);
  };

  window.measure = {
    widths: () => [document.documentElement.scrollWidth, document.documentElement.clientWidth],
    box: (selector) => {
      const { top, bottom, left, right } = box(document.querySelector(selector));
      return { top, bottom, left, right };
    },
    tops: (selector) => all(selector).map((node) => box(node).top),
    drawings: () => all("svg").filter(seen).map((svg) => [box(svg).width, box(svg).height]),
    figures: () => all("figure").map((each) => all("[role=img]", each).filter(seen).length),
    labels: () => labels().map((span) => span.textContent),
    // Words of figures that are cut, or too small to read. A long name may end in an ellipsis.
    badTexts: () => labels().filter((span) => {
      const own = inked(span), figure = box(span.closest("figure"));
      const isName = span.classList.contains("row");
      return (!isName && own.right > figure.right + 0.5) || own.left < figure.left - 0.5
        || own.top < figure.top - 1 || own.bottom > figure.bottom + 0.5
        || parseFloat(getComputedStyle(span).fontSize) < 11
        || (!isName && span.scrollWidth > span.clientWidth + 1);
    }).map((span) => span.textContent),
    // Words of one figure that lie over one another.
    overlaps: () => all("figure").flatMap((figure) => {
      const texts = labels(figure).map((span) => [
        span.textContent, span.classList.contains("row") ? box(span) : inked(span)
      ]);
      return texts.flatMap(([name, one], n) => texts.slice(n + 1).filter(([, other]) =>
        one.left < other.right - 1 && other.left < one.right - 1
        && one.top < other.bottom - 3 && other.top < one.bottom - 3
      ).map(([other]) => name + " / " + other));
    }),
    // The text with the least contrast: [ratio, text].
    contrast: () => {
      const html = all("h1, h2, h3, p, th, td, span, dt, dd, li, figcaption, caption, footer, label")
        .filter((node) => seen(node) && !node.closest(".plot")).filter((node) => Array.from(node.childNodes).some(
          (child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim()
        ))
        .map((node) => [contrast(parsed(getComputedStyle(node).color), ground(node)), node.textContent]);
      const drawn = labels().map((label) => [
        contrast(parsed(getComputedStyle(label).color), shapeBelow(label)), label.textContent
      ]);
      return [...html, ...drawn].sort((a, b) => a[0] - b[0])[0];
    },
    // What hostile text would leave behind if it were taken for markup.
    intruders: () => [
      ...all("*").filter((node) => Array.from(node.attributes).some((a) => a.name.startsWith("on"))),
      ...all("script").slice(1),
      ...all("style").slice(1),
      ...all("img, iframe, object, embed, link, video, audio, base, b, form"),
    ].map((node) => node.outerHTML),
    texts: (selector) => all(selector).map((node) => node.textContent),
    shownRows: () => all(".findings tbody tr").filter(seen).length,
    unlabelled: () => [
      ...all("svg, [role=img]").filter((svg) => svg.getAttribute("aria-hidden") !== "true"
        && !svg.getAttribute("aria-label")
        && !(svg.getAttribute("aria-labelledby") || "").split(" ").every((id) => document.getElementById(id)?.textContent)),
      ...all("table").filter((table) => !table.caption || !all("thead th[scope=col]", table).length),
      ...all("tbody tr").filter((row) => !all("th[scope=row]", row).length),
      ...all("section").filter((each) => !document.getElementById(each.getAttribute("aria-labelledby"))),
    ].map((node) => node.outerHTML.slice(0, 200)),
    headings: () => all("h1, h2, h3").map((node) => Number(node.tagName[1])),
    identifiers: () => all("[id]").map((node) => node.id),
  };
})();
