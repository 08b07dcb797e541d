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
  // Of a text in a drawing: the filled shape below its middle that was drawn last before it.
  const shapeBelow = (text) => {
    const at = box(text), x = at.x + at.width / 2, y = at.y + at.height / 2;
    const shapes = all("rect", text.ownerSVGElement).filter((rect) => {
      const own = box(rect);
      const before = rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      return before && own.left <= x && x <= own.right && own.top <= y && y <= own.bottom
        && parsed(getComputedStyle(rect).fill);
    });
    const last = shapes.pop();
    return last ? parsed(getComputedStyle(last).fill) : ground(text.ownerSVGElement);
  };

  window.measure = {
    widths: () => [document.documentElement.scrollWidth, document.documentElement.clientWidth],
    box: (selector) => {
      const { top, bottom, left, right } = box(document.querySelector(selector));
      return { top, bottom, left, right };
    },
    tops: (selector) => all(selector).map((node) => box(node).top),
    drawings: () => all("svg").filter(seen).map((svg) => [box(svg).width, box(svg).height]),
    figures: () => all("figure").map((each) => all("svg", each).filter(seen).length),
    // Texts of drawings that are cut at their edge, or too small to read.
    badTexts: () => all("svg text").filter(seen).filter((text) => {
      const own = box(text), svg = box(text.ownerSVGElement);
      return own.left < svg.left - 0.5 || own.right > svg.right + 0.5
        || own.top < svg.top - 0.5 || own.bottom > svg.bottom + 0.5 || own.height < 10;
    }).map((text) => text.textContent),
    // Texts of one drawing that lie over one another.
    overlaps: () => all("svg").filter(seen).flatMap((svg) => {
      const texts = all("text", svg).map((text) => [text.textContent, box(text)]);
      return texts.flatMap(([name, one], n) => texts.slice(n + 1).filter(([, other]) =>
        one.left < other.right - 1 && other.left < one.right - 1
        && one.top < other.bottom - 3 && other.top < one.bottom - 3
      ).map(([other]) => name + " / " + other));
    }),
    // The text with the least contrast: [ratio, text].
    contrast: () => {
      const html = all("h1, h2, h3, p, th, td, span, dt, dd, li, figcaption, caption, footer, label")
        .filter(seen).filter((node) => Array.from(node.childNodes).some(
          (child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim()
        ))
        .map((node) => [contrast(parsed(getComputedStyle(node).color), ground(node)), node.textContent]);
      const drawn = all("svg text").filter(seen)
        .map((text) => [contrast(parsed(getComputedStyle(text).fill), shapeBelow(text)), text.textContent]);
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
      ...all("svg").filter((svg) => svg.getAttribute("aria-hidden") !== "true"
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
