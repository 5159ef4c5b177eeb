/* Compare: what changed between two checkpoints, or differs between two models of one shape. */

const LISTED = 12;

/* By head: the change of a column with its error, and whether it is beyond that; words have only changed or not. */
function changesOf(store, column, from, to) {
  const found = new Map();
  if (!sameHeads(store.checkpoints[from].shape, store.checkpoints[to].shape)) return found;
  store.keys(to).forEach((key) => {
    const rows = [store.row(from, key), store.row(to, key)];
    if (column.words) {
      const [before, after] = rows.map((row) => column.value(row));
      const changed = Object.is(before, after) ? 0 : 1;
      found.set(key, { value: changed, error: NaN, beyond: changed === 1, rows });
      return;
    }
    const change = difference(store, column, [from, to], rows);
    found.set(key, { ...change, beyond: Math.abs(change.value) > change.reach * change.error, rows });
  });
  return found;
}

class Compare {
  constructor(root, actions) {
    Object.assign(this, { root, actions });
  }

  draw(scene) {
    const { store, state, changes, column, selected } = scene;
    this.root.hidden = !changes;
    if (!changes) return;
    const [list, note] = [this.root.querySelector("ol"), this.root.querySelector(".note")];
    const [before, after] = [state.from, state.to].map((at) => brief(store.checkpoints[at].label));
    if (!changes.size) {
      list.replaceChildren();
      note.textContent = `${before} and ${after} are not of one shape: their heads cannot be paired.`;
      return;
    }
    const shown = [...changes].filter(([key, { value, beyond }]) => !Number.isNaN(value) && value !== 0 && (!selected || selected.has(key)) && (!state.beyond || beyond));
    shown.sort((a, b) => Math.abs(b[1].value) - Math.abs(a[1].value));
    note.textContent = this.told(scene, shown, before, after);
    list.replaceChildren(...shown.slice(0, LISTED).map(([key, change]) => {
      const [from, to] = change.rows.map((row) => column.text(row));
      const button = element("button", { type: "button", class: "chip" }, headName(key));
      button.addEventListener("click", () => this.actions.choose(key));
      const sign = change.value > 0 ? "+" : "";
      const size = column.words ? "" : `${sign}${column.format(change.value)} ${errorText(change.error)}`;
      return element("li", {}, button, element("span", { class: "amount" }, size), element("span", { class: "ways" }, `${from} → ${to}`));
    }));
  }

  told({ store, state, changes, column, selected }, shown, before, after) {
    const among = selected ? "selected heads" : "heads";
    const total = [...changes].filter(([key, { value }]) => !Number.isNaN(value) && (!selected || selected.has(key))).length;
    if (column.words) return `${column.label} of ${shown.length} of ${total} ${among} is another at ${after} than at ${before}.`;
    const all = [...changes.values()];
    const beyond = [...changes].filter(([key, change]) => change.beyond && (!selected || selected.has(key))).length;
    const known = all.some(({ error }) => Number.isFinite(error));
    if (!known) return `Changes of ${column.label} from ${before} to ${after}, largest first. There are no standard errors${state.beyond ? ", so that none can be said to be beyond its error" : ""}.`;
    const paired = all.some((change) => change.paired);
    const how = paired ? "from groups of documents, paired" : "from the errors at both ends, taken as independent";
    return `Changes of ${column.label} from ${before} to ${after}, largest first. ${beyond} of ${total} ${among} changed beyond the error (95%, ${how}; of heads that did not change, one in twenty would).`;
  }
}
