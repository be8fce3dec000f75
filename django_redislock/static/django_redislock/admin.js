/* The list and the page of a lock refresh themselves. What is selected stays selected, and what has the focus keeps it. */
"use strict";
{
    const texts = document.currentScript.dataset;
    const boxes = "#result_list input.action-select";
    const live = {
        // Django's Actions keeps the check boxes that it was given: give it those that are there whenever it asks
        forEach: (call) => document.querySelectorAll(boxes).forEach(call),
        [Symbol.iterator]: () => document.querySelectorAll(boxes)[Symbol.iterator](),
        get length() {
            return document.querySelectorAll(boxes).length;
        },
    };
    if (window.Actions) {
        const actions = window.Actions;
        window.Actions = (_, options) => actions(live, options);
    }

    const keyOf = (row) => row.querySelector("th a")?.pathname;
    const boxOf = (row) => row.querySelector("input.action-select");

    function replace(old, fresh) {
        if (old && fresh && old.innerHTML !== fresh.innerHTML) {
            const links = () => Array.from(old.querySelectorAll("a, input"));
            const place = links().indexOf(document.activeElement);
            old.replaceChildren(...document.importNode(fresh, true).childNodes);
            links()[place]?.focus({preventScroll: true});
        }
    }

    /* Piece by piece where the pages have the same ones, so that what stands between them is not touched. */
    function replaceAll(old, fresh, pieces) {
        const [parts, freshParts] = [old, fresh].map((element) => element.querySelectorAll(pieces));
        if (parts.length === freshParts.length) {
            parts.forEach((part, index) => replace(part, freshParts[index]));
        } else {
            replace(old, fresh);
        }
    }

    /* One row per lock; a selected one stays though its lock is not on the fresh page. */
    function updateRows(body, freshBody) {
        const before = new Map(Array.from(body.rows, (row) => [keyOf(row), row]));
        const rows = [];
        for (const fresh of freshBody.rows) {
            const row = before.get(keyOf(fresh));
            before.delete(keyOf(fresh));
            if (!row) {
                rows.push(document.importNode(fresh, true));
                continue;
            }
            row.classList.remove("redislock-kept");
            row.removeAttribute("title");
            Array.from(row.cells).forEach((cell, index) => {
                if (!cell.querySelector("input.action-select")) {
                    replace(cell, fresh.cells[index]);
                }
            });
            rows.push(row);
        }
        for (const row of before.values()) {
            if (boxOf(row)?.checked) {
                row.classList.add("redislock-kept");
                row.title = texts.kept;
                rows.push(row);
            } else {
                row.remove();
            }
        }
        const focused = document.activeElement;
        rows.forEach((row, index) => {
            if (body.rows[index] !== row) {
                body.insertBefore(row, body.rows[index] || null);
            }
        });
        if (body.contains(focused)) {
            focused.focus({preventScroll: true}); // a row that is moved loses the focus
        }
        const counter = document.querySelector(".action-counter");
        if (counter && body.rows.length && Number(counter.dataset.actionsIcnt) !== body.rows.length) {
            counter.dataset.actionsIcnt = body.rows.length;
            boxOf(body.rows[0])?.dispatchEvent(new Event("change", {bubbles: true})); // counts anew
        }
    }

    /* Returns whether Redis could be asked. */
    function updateMessages(fresh) {
        document.querySelectorAll(".messagelist .redislock-down").forEach((item) => item.remove());
        document.querySelectorAll(".messagelist:empty").forEach((list) => list.remove());
        const list = fresh.querySelector(".messagelist");
        if (list) {
            document.getElementById("content").before(document.importNode(list, true));
        }
        return !list?.querySelector(".redislock-down");
    }

    function update(fresh, sound) {
        document.querySelector("#result_list, #heldlock_form")?.classList.toggle("redislock-stale", !sound);
        if (!sound) {
            return; // what was shown last is better than nothing
        }
        const [body, freshBody] = [document, fresh].map((page) => page.querySelector("#result_list tbody"));
        const [form, freshForm] = [document, fresh].map((page) => page.getElementById("heldlock_form"));
        if (form && freshForm) {
            replaceAll(form, freshForm, ".readonly, .submit-row");
        } else if (body && (freshBody || live.length)) {
            updateRows(body, freshBody || document.createElement("tbody"));
            replace(document.querySelector(".paginator"), fresh.querySelector(".paginator"));
            replace(document.querySelector("#toolbar .quiet"), fresh.querySelector("#toolbar .quiet"));
        } else if (body || freshBody) {
            replace(document.getElementById("changelist-form"), fresh.getElementById("changelist-form"));
            if (live.length) {
                window.Actions(live);
            }
        }
    }

    function mayRefresh() {
        const across = document.querySelector("input.select-across[value='1']");
        const busy = window.getSelection().type === "Range" || document.activeElement?.tagName === "SELECT";
        return !document.hidden && !across && !busy;
    }

    async function refresh() {
        let response;
        try {
            response = await fetch(window.location.href, {credentials: "same-origin"});
        } catch {
            return true; // the network is gone for a while
        }
        if (response.status === 403 || response.status === 404) {
            return false; // not allowed any more
        }
        if (response.ok) {
            const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
            if (!fresh.querySelector("#changelist, #heldlock_form")) {
                return false; // logged out. (While Redis is away, the page of a lock leads to the list.)
            }
            const sound = updateMessages(fresh); // messages are shown only once
            if (mayRefresh()) {
                update(fresh, sound);
            }
        }
        return true;
    }

    function remembered() {
        try {
            return window.localStorage.getItem("redislock.refresh") !== "off";
        } catch {
            return true;
        }
    }

    function remember(on) {
        try {
            window.localStorage.setItem("redislock.refresh", on ? "on" : "off");
        } catch {
            // then it holds for this page only
        }
    }

    document.addEventListener("DOMContentLoaded", () => {
        const place =
            document.querySelector("#changelist-search > div") || document.getElementById("heldlock_form")?.parentNode;
        if (!place) {
            return;
        }
        const label = document.createElement("label");
        const box = document.createElement("input");
        box.type = "checkbox";
        box.checked = remembered();
        box.addEventListener("change", () => remember(box.checked));
        label.className = "redislock-refresh";
        label.append(box, ` ${texts.refresh}`);
        place.append(label);
        const tick = async () => {
            if (box.checked && mayRefresh() && !(await refresh())) {
                label.textContent = texts.stopped;
                return;
            }
            window.setTimeout(tick, texts.seconds * 1000);
        };
        window.setTimeout(tick, texts.seconds * 1000);
    });
}
