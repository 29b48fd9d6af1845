"use strict";
// Answers are shown through text nodes only, so nothing in them is ever read as HTML.
(() => {
  const source = document.getElementById("answers");
  if (!source) return;
  const answers = JSON.parse(source.textContent);
  const get = (id) => document.getElementById(id);
  const [chooseTask, chooseAnswer, note] = [get("choose-task"), get("choose-answer"), get("note")];

  // Control characters become their pictures, and what turns the reading direction U+FFFD: an answer
  // must not turn the words around it.
  const shown = (text) =>
    text
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  const element = (name, kind, ...children) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    const kept = children.filter((child) => child !== null);
    made.append(...kept.map((child) => (typeof child === "string" ? shown(child) : child)));
    return made;
  };
  const option = (words, value) => {
    const made = element("option", "", words);
    made.value = value;
    return made;
  };
  // White space would be invisible on its own, as a whole token or at its edges.
  const visible = (text) =>
    text === "" ? "(nothing)" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·");
  const verdict = (isRight) => (isRight === null ? "not graded" : isRight ? "right" : "wrong");
  const short = (text) => (text.length > 60 ? text.slice(0, 59) + "…" : text);

  let noted = null;
  const hide = () => {
    note.hidden = true;
    if (noted) noted.removeAttribute("aria-describedby");
    noted = null;
  };
  const place = () => {
    if (!noted) return;
    const at = noted.getClientRects()[0];
    const size = note.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - size.width - 8);
    const above = at.top - size.height - 8;
    note.style.left = Math.max(8, left) + "px";
    note.style.top = (above > 4 ? above : at.bottom + 8) + "px";
  };
  const show = (mark, exception) => {
    hide();
    const rows = [
      ["draft", visible(short(exception.draft))],
      ["target", visible(short(exception.target))],
      ["regret", exception.regret.toFixed(3) + " logits"],
    ];
    if (exception.num > 1) rows.push(["holds", exception.num + " exceptions"]);
    if (exception.position !== null) rows.push(["position", "token " + exception.position]);
    const list = element("dl");
    for (const [name, value] of rows) list.append(element("dt", "", name), element("dd", "", value));
    note.replaceChildren(list);
    note.hidden = false;
    noted = mark;
    mark.setAttribute("aria-describedby", "note");
    place();
  };

  // The pointer may move from the mark onto the note, which then stays.
  const leave = (mark) => {
    const isUsed = note.matches(":hover") || mark.matches(":hover");
    if (noted === mark && document.activeElement !== mark && !isUsed) hide();
  };
  note.addEventListener("mouseleave", () => noted && setTimeout(leave, 150, noted));

  const exceptionMark = (piece) => {
    const isBlank = piece.text.trim() === "";
    const mark = element("span", "exception");
    if (isBlank) {
      mark.append(element("span", "sign", visible(piece.text)));
      if (piece.text.includes("\n")) mark.append(piece.text);
    } else {
      mark.append(shown(piece.text));
    }
    mark.tabIndex = 0;
    mark.setAttribute("role", "button");
    const { draft, target, regret } = piece.exception;
    mark.setAttribute(
      "aria-label",
      `exception: draft ${short(draft)}, target ${short(target)}, regret ${regret.toFixed(3)} logits`,
    );
    const open = () => show(mark, piece.exception);
    mark.addEventListener("mouseenter", open);
    mark.addEventListener("mouseleave", () => setTimeout(leave, 150, mark));
    mark.addEventListener("focus", open);
    mark.addEventListener("blur", hide);
    mark.addEventListener("click", open);
    mark.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    });
    return mark;
  };

  const textBox = (name, ...children) => {
    const box = element("div", "text", ...children);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", name);
    box.addEventListener("scroll", place, { passive: true });
    return box;
  };
  const facts = (arm, more) => {
    const said = [verdict(arm.is_right)];
    if (arm.extracted !== null) said.push("read as " + short(arm.extracted));
    return element("p", "", said.concat(more).join("; "));
  };
  const armBox = (kind, title, arm, more, ...children) => {
    const box = element("div", "arm " + kind, element("h3", "", title));
    if (arm) box.append(facts(arm, more), textBox(title + ", text", ...children));
    else box.append(element("p", "", "This arm's text was not kept."));
    return box;
  };
  // Where the two texts part, on a whole code point.
  const parting = (a, b) => {
    let at = 0;
    while (at < a.length && at < b.length && a[at] === b[at]) at += 1;
    const before = a.charCodeAt(at - 1);
    return before >= 0xd800 && before < 0xdc00 ? at - 1 : at;
  };
  const strictText = (answer) => {
    if (!answer.strict) return [];
    const text = answer.strict.text;
    const other = answer.asd ? answer.asd.pieces.map((piece) => piece.text).join("") : text;
    if (other === text) return [text];
    const at = parting(text, other);
    const sign = element("span", "parting");
    sign.title = "the answers part here";
    return [text.slice(0, at), sign, text.slice(at)];
  };

  const draw = () => {
    hide();
    const task = answers[Number(chooseTask.value)].answers;
    const index = Number(chooseAnswer.value);
    const answer = task[index];
    const exceptions = answer.asd ? answer.asd.pieces.filter((piece) => piece.exception) : [];
    const prompt = element("details", "", element("summary", "", "Prompt and reference"));
    (answer.turns || []).forEach((turn, i) =>
      prompt.append(element("h3", "", "Turn " + (i + 1)), textBox("Turn " + (i + 1), turn)));
    prompt.append(
      element("h3", "", "Reference"),
      answer.reference === null
        ? element("p", "", "The study holds none.")
        : textBox("Reference", answer.reference),
    );
    // One stretch holds several exceptions where they share a character.
    const count = exceptions.reduce((sum, piece) => sum + (piece.exception.num ?? 1), 0);
    const spent = [count + (count === 1 ? " exception" : " exceptions")];
    if (answer.asd && answer.asd.spent !== null) {
      spent.push("regret spent " + answer.asd.spent.toFixed(2) + " logits");
    }
    const pieces = answer.asd
      ? answer.asd.pieces.map((piece) => (piece.exception ? exceptionMark(piece) : piece.text))
      : [];
    get("answer").replaceChildren(
      prompt,
      element(
        "div",
        "arms",
        armBox("strict", "Strict", answer.strict, [], ...strictText(answer)),
        armBox("asd", "ASD", answer.asd, spent, ...pieces),
      ),
    );
    const state = `Answer ${index + 1} of ${task.length}: ${short(answer.id)}`;
    get("answer-state").textContent = shown(state);
    get("previous").disabled = index === 0;
    get("next").disabled = index === task.length - 1;
  };
  const fill = () => {
    const task = answers[Number(chooseTask.value)].answers;
    const arm = (answer) => (answer && answer.is_right !== null ? verdict(answer.is_right) : "–");
    chooseAnswer.replaceChildren(...task.map((answer, i) =>
      option(`${short(answer.id)} (${arm(answer.strict)} → ${arm(answer.asd)})`, i)));
    draw();
  };
  const step = (by) => () => {
    chooseAnswer.value = String(Number(chooseAnswer.value) + by);
    draw();
  };

  chooseTask.append(...answers.map((task, i) => option(task.task, i)));
  chooseTask.addEventListener("change", fill);
  chooseAnswer.addEventListener("change", draw);
  get("previous").addEventListener("click", step(-1));
  get("next").addEventListener("click", step(1));
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("click", (event) => {
    if (noted && !noted.contains(event.target) && !note.contains(event.target)) hide();
  });
  // Focus by keyboard scrolls the page, so scrolling moves the note and does not close it.
  window.addEventListener("scroll", place, { passive: true });
  window.addEventListener("resize", place);
  get("browser").hidden = false;
  fill();
})();
