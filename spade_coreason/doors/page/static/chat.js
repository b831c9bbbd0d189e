// The chat. It shows the states of the feed, by their ids, and posts what the person writes. It never makes elements of HTML.
const page = Object.fromEntries([...document.querySelectorAll('[id]')].map(element => [element.id, element])), {log, empty, menu} = page, tab = crypto.randomUUID();
const {words, elements} = JSON.parse(document.body.dataset.given);
const stored = (name, none) => JSON.parse(localStorage[name] ?? null) ?? none, store = (name, value) => { if (localStorage.secret) localStorage[name] = JSON.stringify(value); };
const sleep = ms => new Promise(done => setTimeout(done, ms));
let account, agents = [], conversations, found, place = {}, turns = new Map(), commands = [], leads, release, aborter, timer, searched, shown, heard = Date.now();
const t = (word, name) => (words[word] ?? word).replace('{name}', () => name), agentOf = jid => agents.find(one => one.jid === jid), nameOf = jid => agentOf(jid)?.name ?? jid;
const addressOf = ({agent, thread}) => `#${new URLSearchParams({agent, thread})}`;
const isFine = matchMedia('(pointer: fine)').matches, toText = () => isFine && page.text.focus();

const make = (name, properties = {}, ...nodes) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...nodes);
  return element;
};
const button = (text, onclick, className = '') => make('button', {type: 'button', className, onclick}, text);
const note = (...nodes) => make('p', {className: 'foot'}, ...nodes);
const wide = (element, ariaLabel) => make('div', {className: 'wide', tabIndex: 0, role: 'group', ariaLabel}, element);
const build = node => {
  if (typeof node === 'string') return node;
  const [name, {href, src, alt, start, align}, nodes] = node, element = make(elements.includes(name) ? name : 'span', {dir: 'auto'}, ...nodes.map(build));
  if (href) Object.assign(element, {href, rel: 'noreferrer', target: '_blank'});
  if (src) Object.assign(element, {src, alt, loading: 'lazy'});
  if (start) element.start = start;
  if (align) element.style.textAlign = align;
  if (name === 'table') return wide(element, t('Table'));
  if (name === 'pre') return make('div', {}, button(t('Copy'), () => navigator.clipboard.writeText(element.textContent), 'quiet copy'), wide(element, t('Code')));
  return element;
};
const clock = at => make('time', {dateTime: at}, new Date(at).toLocaleString([], {dateStyle: 'short', timeStyle: 'short'}));

async function send(path, body = {}, signal) {
  const answer = await fetch(path, {method: 'POST', signal, headers: {'X-Page-Key': localStorage.secret ?? ''}, body: body instanceof Blob ? body : new Blob([JSON.stringify(body)], {type: 'application/json'})})
    .catch(() => { throw new Error(t('The platform cannot be reached at the moment.')); });
  if (answer.ok) return answer;
  if (answer.status === 401 && path !== '/chat/me') location.reload();
  throw Object.assign(new Error((await answer.json().catch(() => ({}))).error?.message ?? answer.statusText), {status: answer.status});
}
const post = async (path, body) => (await send(path, body)).json();

// One tab has the feed, and passes its states to the others. If it closes or freezes, another one takes over.

const channel = new BroadcastChannel('page'), tabs = new Map();
const tell = message => { const data = {tab, ...message}; channel.postMessage(data); channel.onmessage({data}); };
const want = () => tell({own: {place, isHidden: document.hidden}});
const connectSoon = () => { clearTimeout(timer); if (leads) timer = setTimeout(connect, 50); };
channel.onmessage = ({data: {tab: teller, own, asks, isGone, states}}) => {
  if (!account) return;  // the address of this tab is not read yet
  if (own) { tabs.set(teller, own); connectSoon(); }
  if (isGone) tabs.delete(teller);
  if (asks) want();
  if (states) { heard = Date.now(); states.forEach(show); }
};
const lead = (options = {}) => navigator.locks.request('feed', options, () => new Promise(done => { release = done; leads = true; tell({asks: true}); }))
  .catch(() => {}).then(() => { leads = false; aborter?.abort(); lead(); });
async function connect() {
  aborter?.abort();
  const {signal} = aborter = new AbortController(), places = [...tabs.values()].slice(-20).filter(one => one.place.agent).map(({place: {agent, thread, limit}}) => [agent, thread, limit]);
  for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      const reader = (await send('/chat/feed', {places}, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = '', piece; !(piece = await reader.read()).done; wait = 250) {
        const lines = (rest + piece.value).split('\n');
        rest = lines.pop();
        tell({states: lines.map(line => JSON.parse(line))});
      }
    } catch { if (signal.aborted) return; }
    tell({states: [{type: 'problem', text: t('Connecting…')}]});
    await sleep(wait);
  }
}
setInterval(() => { if (leads) tell({states: []}); else if (account && Date.now() - heard > 25000) { heard = Date.now(); lead({steal: true}); } }, 5000);
addEventListener('pagehide', () => tell({isGone: true}));
document.addEventListener('freeze', () => release?.());
document.addEventListener('resume', want);

// The states

const on = {
  problem({text}) { page.problem.textContent = text; },
  agents({agents: all}) { agents = all; if (!place.agent && all.length) go({agent: all[0].jid, thread: ''}); refresh(); showQuestions(); },
  conversations({conversations: all}) {
    const news = all.find(one => conversations && one.turns > (conversations.find(other => addressOf(other) === addressOf(one))?.turns ?? 0));
    if (!localStorage.read) store('read', Object.fromEntries(all.map(one => [addressOf(one), one.turns])));
    conversations = all;
    refresh();
    if (news) notify(nameOf(news.agent), news.title);
  },
  turns({turns: all, is_whole: isWhole, has_more: hasMore, count}) {
    if (!document.hidden) store('read', {...stored('read', {}), [addressOf(place)]: count});
    if (isWhole) {
      for (const [id, turn] of turns) if (!goesOn(turn.state) && !all.some(one => one.id === id)) { turn.box.remove(); turns.delete(id); }
      hasMore ? log.prepend(more) : more.remove();
    }
    for (const fields of all) {
      forget(fields.id);
      showWhole(fields);
      if (!isWhole) announce(fields.is_first ? t('{name} has written.', nameOf(place.agent)) : t('{name} has answered.', nameOf(place.agent)));
    }
    if (isWhole) showSent();
    refresh();
  },
  answer({is_new: isNew, keeps, state, parts, ...fields}) {
    const turn = isNew ? turnOf(fields) : turns.get(fields.id);
    if (!isNew && !goesOn(turn?.state)) return;
    if (isNew && !keeps) {
      clear(turn);
      turn.thoughts.lastChild.replaceChildren();
    }
    fill(turn, state, parts);
    if (state) keep(turn);
    if (isNew || state) refresh();
  },
};
const goesOn = state => ['', 'sent', 'parked', 'interrupted'].includes(state);
function show(state) {
  if ('thread' in state && addressOf(state) !== addressOf(place)) return;
  const isEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 90;
  on[state.type]?.(state);
  if (isEnd) log.scrollTop = log.scrollHeight;
}
const announce = text => { page.news.textContent = text; };
function notify(title, body) {
  if (document.hidden) document.title = `• ${title}`;
  if (leads && [...tabs.values()].every(one => one.isHidden) && Notification.permission === 'granted') new Notification(title, {body, tag: title});
}

function turnOf({id, me: said, at, is_first: isFirst}) {
  if (!turns.has(id)) {
    const turn = {id, state: 'sent', parts: new Map(), me: make('div', {className: 'me', dir: 'auto'}), thoughts: make('details', {hidden: true}, make('summary'), make('ol')), answer: make('div', {className: 'it', dir: 'auto'}), foot: note()};
    turn.box = make('article', {className: isFirst ? 'first' : ''}, said ? turn.me : note(isFirst ? t('{name} has written.', nameOf(place.agent)) : ''), turn.thoughts, turn.answer, turn.foot);
    turns.set(id, turn);
  }
  const turn = turns.get(id), {box, me: bubble} = turn;
  if (turn.state === 'sent') {  // a message has another time, and pictures, once it is stored
    turn.at = box.at = at;
    if (said) bubble.replaceChildren(said.text, ...said.files.map(build));
    box.remove();
    const next = [...log.children].findLast(one => !(Date.parse(one.at) > Date.parse(at)));
    next ? next.after(box) : log.prepend(box);
  }
  return turn;
}
function fill(turn, state, parts) {
  const name = {parked: t('waits for an answer'), failed: t('failed'), refused: t('refused'), cancelled: t('stopped'), interrupted: t('goes on soon')}[state];
  turn.state = state;
  turn.foot.replaceChildren(clock(turn.at), name ? ` · ${name}` : '');
  parts.forEach((part, index) => showPart(turn, {part: index, ...part}));
}
const clear = turn => { turn.parts.clear(); turn.answer.replaceChildren(); };
function showWhole(fields) {
  const turn = turnOf(fields);
  clear(turn);
  turn.at = fields.at;
  fill(turn, fields.state ?? (turn.state === 'cancelled' ? 'cancelled' : 'completed'), fields.parts);
}
function showPart(turn, {part: id, kind, start = 0, blocks}) {
  if (kind === 'thought') {
    const list = turn.thoughts.lastChild;
    list.append(make('li', {}, ...blocks));
    turn.thoughts.hidden = false;
    turn.thoughts.firstChild.textContent = `${t('Thoughts')} (${list.children.length})`;
    return;
  }
  const part = turn.parts.get(id) ?? {kind, blocks: [], box: make('div', {className: kind === 'error' ? 'bad' : 'text'})}, {box} = part;
  turn.parts.set(id, part);
  part.blocks.splice(start, Infinity, ...blocks);
  if (!box.isConnected) turn.answer.append(box);
  while (box.childNodes.length > start) box.lastChild.remove();
  box.append(...blocks.map(build));
}
const more = make('p', {}, button(t('Show earlier messages'), () => { place.limit = Math.min(place.limit + 40, 2000); want(); }, 'quiet'));
const findRunning = () => [...turns.values()].find(turn => !turn.state);
function refresh() {
  for (const {box, state} of turns.values()) box.classList.toggle('live', !state);
  page.stop.hidden = !findRunning();
  const one = agentOf(place.agent);
  if (!one || turns.size) empty.remove();
  else if (!empty.isConnected) {
    empty.replaceChildren(make('p', {dir: 'auto'}, one.about), ...[...one.examples, '/help'].map(text => button(text, () => { ask({...newDraft(), text}); toText(); })));
    log.append(empty);
  }
  showSide(one);
}

// The list at the side, and the questions

function showSide(one) {
  const read = stored('read', {});
  if (!document.hidden) document.title = one?.name ?? 'spade_coreason';
  page.title.textContent = nameOf(place.agent ?? '');
  page.about.textContent = one?.status ?? '';
  const begun = stored('sent', []).filter(other => !other.parts || goesOn(other.state));
  const state = JSON.stringify([agents, conversations, found, read, place, begun]);
  if (state === shown) return;  // what is replaced while it is clicked gets no click
  shown = state;
  const link = (other, text, isCurrent, badge) => make('a', {href: addressOf(other), ariaCurrent: isCurrent ? 'page' : null}, make('span', {dir: 'auto'}, text), badge ? make('b', {}, badge) : '');
  page.agents.replaceChildren(...agents.map(other => link({agent: other.jid, thread: ''}, other.name, other === one, other.questions.length ? t('asks you') : '')));
  const added = new Map([...place.thread ? [{...place, title: t('New conversation')}] : [], ...begun].map(other => [addressOf(other), other]));
  for (const other of conversations ?? []) added.delete(addressOf(other));
  const all = found ?? [...added.values(), ...conversations ?? []];
  page.conversations.replaceChildren(found?.length === 0 ? note(t('Nothing is found.')) : '', ...all.map(other => link(other, `${nameOf(other.agent)}: ${other.title || other.text || '…'}`, addressOf(other) === addressOf(place), Math.max(0, other.turns - (read[addressOf(other)] ?? 0)))));
}
function showQuestions() {
  const all = agents.flatMap(one => one.questions), boxes = [...page.questions.children];
  boxes.filter(box => !box.dataset.done && !all.some(one => one.code === box.code)).forEach(box => box.remove());
  for (const {agent, code, kind, label, call, blocks, choices, schema} of all.filter(one => !boxes.some(box => box.code === one.code))) {
    const problem = make('p', {className: 'bad', role: 'alert'}), isApproval = kind === 'approval';
    const answer = (name, read, className, decision = '') => button(name, async ({target}) => {
      target.disabled = true;
      try {
        const {is_taken: isTaken, text: outcome} = await post('/chat/answer', {agent, code, decision, text: read()});
        problem.textContent = outcome;
        if (!isTaken) return;
        if (isApproval) {
          box.replaceChildren(note(`${label} · ${outcome}`));
          box.dataset.done = true;
        } else box.remove();  // what follows tells it
        for (const one of agents) one.questions = one.questions.filter(other => other.code !== code);
        refresh();
        announce(outcome);
        toText();
      } catch (error) { problem.textContent = error.message; } finally { target.disabled = false; }
    }, className);
    const hint = isApproval ? t('Your reason, if you like') : t('Answer'), field = make('input', {placeholder: hint, ariaLabel: hint});
    const inputs = Object.entries(schema?.properties ?? {}).map(([name, {type, title, enum: values}]) => make('label', {}, `${title ?? name} `, values ? make('select', {name}, ...values.map(value => make('option', {}, value))) : make('input', {name, type: {boolean: 'checkbox', integer: 'number', number: 'number'}[type] ?? 'text', step: 'any'})));
    const read = () => !inputs.length ? field.value : JSON.stringify(Object.fromEntries(inputs.map(({lastChild: input}) => [input.name, input[{checkbox: 'checked', number: 'valueAsNumber'}[input.type] ?? 'value']])));
    const parts = isApproval ? [field, answer(t('Approve'), read, 'primary', 'approve'), answer(t('Deny'), read, 'bad', 'deny')]
      : choices.length ? choices.map(text => answer(text, () => text))
        : [...inputs.length ? inputs : [field], answer(t('Answer'), read, 'primary')];
    const box = make('div', {className: 'card', code, role: 'group', ariaLabel: label}, note(label), ...isApproval ? [make('code', {className: 'call'}, call)] : blocks.map(build), make('div', {className: 'choices'}, ...parts), problem);
    page.questions.append(box);
    announce(label);
    notify(nameOf(agent), label);
  }
}

// What the person writes. A message stays here until its turn is stored there. The reply of a command is no turn, and stays here.

const update = change => store('sent', change(stored('sent', [])).slice(-60));
const forget = id => update(list => list.filter(one => one.id !== id));
const revise = (id, fields) => update(list => list.map(one => one.id === id ? {...one, ...fields} : one));
const keep = turn => { const parts = [...turn.parts].map(([part, {box, ...fields}]) => ({part, ...fields})); if (JSON.stringify(parts).length < 50000) revise(turn.id, {parts, state: turn.state}); };
function ask(message) {
  const entry = {...message, ...place, at: new Date().toISOString()};
  update(list => [...list, entry]);
  showSent();
  refresh();
  push(entry);
  log.scrollTop = log.scrollHeight;
}
function showSent() {
  for (const one of stored('sent', []).filter(other => addressOf(other) === addressOf(place) && !turns.has(other.id))) {
    const fields = {...one, me: {text: one.text, files: one.files.map(({url, name}) => ['a', {href: url}, [name]])}};
    if (one.parts) showWhole(fields);
    else turnOf(fields).foot.replaceChildren(one.isStored ? clock(one.at) : t('is sent…'));
  }
}
// In the order in which they were written, in all tabs: the next one follows when the one before is stored.
const push = entry => navigator.locks.request(addressOf(entry), () => pushNow(entry));
async function pushNow({agent, thread, id, text, files, at}) {
  const tellThere = (...nodes) => { const turn = turns.get(id); if (turn?.state === 'sent') turn.foot.replaceChildren(...nodes); };
  for (let wait = 500; ; wait = Math.min(wait * 2, 5000)) {
    try {  // the same id is the same message, however often it is sent
      revise(id, {...await post('/chat/ask', {agent, thread, id, text, files}), isStored: true});
      return tellThere(clock(at));
    } catch ({status, message}) {
      if (status && status !== 503 && status !== 429) {
        forget(id);
        return tellThere(message, button(t('Write it again'), () => { turns.get(id).box.remove(); turns.delete(id); edit({text}); }, 'quiet'));
      }
      tellThere(status ? message : t('is not sent yet; it is tried again'));
      await sleep(wait);
    }
  }
}
const newDraft = () => ({id: crypto.randomUUID(), text: '', files: []}), draft = () => stored(addressOf(place), newDraft());
const edit = fields => { store(addressOf(place), {...draft(), ...fields}); showDraft(); };
function showDraft() {
  const {text, files} = draft(), field = page.text;
  if (field.value !== text) field.value = text;
  field.style.height = '';
  field.style.height = `${Math.min(field.scrollHeight + 2, 200)}px`;
  page.files.replaceChildren(...files.map(file => button(`${file.name} ×`, () => edit({files: files.filter(one => one !== file)}))));
  menu.replaceChildren(...commands.filter(([name]) => /^\/[^\s/]*$/.test(text) && name.startsWith(text)).map(([name, about]) => button(`${name} · ${about}`, () => { edit({text: name}); field.focus(); }, 'quiet')));
}
async function addFiles(files) {
  const {id} = draft(), own = place;
  for (const file of files) {
    page.problem.textContent = t('{name} is uploaded…', file.name);
    try {
      const attached = await post(`/chat/file/${own.agent}/${id}/${encodeURIComponent(file.name)}`, file);
      if (own === place) edit({id, files: [...draft().files, attached]});
      page.problem.textContent = '';
    } catch (error) { page.problem.textContent = error.message; }
  }
}
function go(wanted) {
  side(false);
  if (addressOf(wanted) === addressOf(place)) return;
  place = {...wanted, limit: 40};
  history.replaceState(null, '', addressOf(place));
  turns = new Map();
  commands = [];
  document.querySelectorAll('[data-done]').forEach(box => box.remove());
  log.replaceChildren();
  refresh();
  showDraft();
  want();
  post('/chat/commands', place).then(all => { commands = all; showDraft(); }, () => {});
  toText();
}
const side = isOpen => { page.chat.classList.toggle('open', isOpen); page.open.setAttribute('aria-expanded', isOpen); page.main.inert = isOpen && matchMedia('(max-width: 46rem)').matches; };
const fromHash = () => { const {agent, thread = ''} = Object.fromEntries(new URLSearchParams(location.hash.slice(1))); if (agent) go({agent, thread}); };

page.ask.onsubmit = event => { event.preventDefault(); const value = draft(); if (!value.text.trim() && !value.files.length) return; ask(value); edit(newDraft()); };
page.text.oninput = () => edit({text: page.text.value});
page.text.onkeydown = event => {
  if (event.key === 'ArrowDown' && menu.firstChild) menu.firstChild.focus();
  else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && isFine) page.ask.requestSubmit();
  else return;
  event.preventDefault();
};
menu.onkeydown = event => { const to = {ArrowDown: 'nextSibling', ArrowUp: 'previousSibling'}[event.key]; if (to) { event.preventDefault(); (event.target[to] ?? page.text).focus(); } };
page.text.onpaste = event => addFiles(event.clipboardData.files);
log.ondragover = event => event.preventDefault();
log.ondrop = event => { event.preventDefault(); addFiles(event.dataTransfer.files); };
page.file.onchange = async event => { await addFiles([...event.target.files]); event.target.value = ''; };
page.stop.onclick = () => {
  const turn = findRunning();
  if (!turn) return;
  revise(turn.id, {parts: [], state: 'cancelled'});  // it must not be sent again
  post('/chat/cancel', {agent: place.agent, id: turn.id}).catch(() => {});
};
page.new.onclick = () => go({...place, thread: crypto.randomUUID()});
page.open.onclick = () => { side(true); page.close.focus(); };
page.close.onclick = () => { side(false); page.open.focus(); };
page.notify.onclick = async () => { await Notification.requestPermission(); page.notify.hidden = true; };
page.out.onclick = async () => { await post('/logout').catch(() => {}); localStorage.clear(); location.replace('/login'); };
page.side.onclick = event => { if (event.target.closest('a')) side(false); };
page.search.oninput = () => {
  clearTimeout(searched);
  searched = setTimeout(async () => { const text = page.search.value.trim(); found = text ? await post('/chat/search', {text}).catch(() => []) : undefined; refresh(); }, 250);
};
addEventListener('keydown', event => {
  if (event.key === 'Escape' && menu.firstChild) { edit({text: ''}); page.text.focus(); }
  else if (event.key === 'Escape') page[page.chat.classList.contains('open') ? 'close' : 'stop'].click();
  else if (event.key.toLowerCase() === 'k' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); side(true); page.search.focus(); }
});
addEventListener('hashchange', fromHash);
addEventListener('visibilitychange', () => { want(); refresh(); });
addEventListener('storage', ({key}) => { if (key === 'secret' || key === null) location.reload(); else if (key === addressOf(place)) showDraft(); });

// The login. The link is in the fragment, which no server and no preview of a link gets.

async function begin() {
  const link = location.pathname === '/login' ? location.hash.slice(1) : '', text = page['login-text'];
  try {
    if (link) {
      text.textContent = t('Chat with your agents as {name}.', (await post('/login/name', {link})).account);
      page.go.hidden = false;
      page.go.onclick = async () => { try { const {key} = await post('/login', {link}); localStorage.clear(); localStorage.secret = key; location.replace('/'); } catch ({message}) { text.textContent = message; } };
    } else ({account} = await post('/chat/me'));
  } catch ({status, message}) {
    if (!status || status === 503) { await sleep(1000); return begin(); }
    if (!link) Object.keys(localStorage).filter(key => key !== 'secret').forEach(key => delete localStorage[key]);  // another tab wrote as this one logged out
    text.textContent = message;
  }
  if (link) history.replaceState(null, '', '/login');
  page.login.hidden = Boolean(account);
  page.chat.hidden = !account;
  if (!account) return page.go.focus();
  page.account.textContent = account;
  page.notify.hidden = Notification.permission !== 'default';
  fromHash();
  want();
  lead();
  stored('sent', []).filter(one => !one.isStored && !one.parts).forEach(push);  // of before a reload
}
begin();
