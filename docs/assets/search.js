// The search of Material takes each word as the beginning of another: "do" finds "Docker", and "answering" not "answers". So a
// whole question finds everything. Here a finished word counts as a word in any form, words such as "how" do not count, and
// words that mean the same find each other. A long word with one wrong letter is found. No word is required: an unknown one leaves
// the results of the others. Messages of type 2 are queries (Material 9.8); lunr leaves words with a boost ("^20", whole numbers
// only) to its stemmer.
// Each question of the page of questions is a result of its own, whose address is questions/?question=ANCHOR.
(() => {
  const question = new URLSearchParams(location.search).get("question");
  addEventListener("DOMContentLoaded", () => {
    if (question && document.getElementById(question)) location.replace(`#${question}`);
  });
  const common = new Set(
    ("a about am an and any are as at be by can could did do does done for from get had has have how i i'd i'm if in into is it "
      + "its it's just like me my no not of on or our should so than that the their them there they this to us via was we were what "
      + "when where which while who why will with would you your").split(" "));
  // These are on nearly every page. They count only in a query of nothing else.
  const frequent = new Set(
    ("agent agents another answer answers bot bots change doesn't don't give know make makes mean need needs now one platform possible see set "
      + "should show something such tell thing use used user uses using want work works").split(" "));
  // Words on the left are searched as those on the right, too.
  const synonyms = {
    admins: "operator", admitted: "admit access audit", compatible: "http", endpoint: "http", daily: "schedule morning", laptop: "machine", upload: "file files",
    uploads: "file files", wallet: "budget cost cap tokens", administrator: "operator", allow: "access", approve: "approval", approves: "approval", autogen: "langgraph",
    audio: "voice", ban: "banned block", banned: "fail2ban", bill: "cost price", boss: "supervisor", bug: "exception", cert: "certificate", certs: "certificate",
    claude: "anthropic", cloud: "docker", concurrency: "concurrent atomic", concurrent: "atomic", container: "docker",
    counter: "atomic", crewai: "langgraph", cron: "schedule", daemon: "service systemd", dashboard: "prometheus status", db: "database", debugging: "debug",
    delegate: "supervisor", delegates: "supervisor", deployment: "deploy", disk: "space", dollar: "cost", e2ee: "omemo encryption", erase: "delete", escalate: "handover human",
    eval: "evaluate", evals: "evaluate", evaluation: "evaluate", expense: "cost", expose: "http reach", firewall: "port", forbid: "access restrict", gemini: "anthropic",
    gpt: "openai", greet: "first", gui: "web", handoff: "handover human", handover: "human", hitl: "human approval", housekeeping: "retention", image: "picture vision",
    images: "picture vision", isolate: "crash platform", isolation: "crash platform", jabber: "xmpp", jid: "address", journal: "log", journald: "log", k8s: "kubernetes",
    langchain: "langgraph", latency: "slow fast", lets: "certificate", lock: "atomic", lockout: "banned fail2ban", locked: "banned fail2ban", log: "logging",
    logging: "log", logrotate: "log rotate", login: "account password", logs: "logging", mariadb: "mysql", monitor: "monitoring", morning: "schedule reminder",
    multimodal: "vision picture", mutex: "atomic", newsletter: "broadcast first", notification: "notify first", oauth: "password key",
    observability: "tracing monitoring", openssl: "certificate", opentelemetry: "tracing", orchestrator: "supervisor", orchestrate: "supervisor",
    otel: "tracing", parallel: "concurrent", permission: "access", permissions: "access", pg_dump: "backup postgresql", pgdump: "backup postgresql", photo: "picture",
    ping: "status", price: "cost", proactive: "first schedule", purge: "delete", push: "notify first", race: "concurrent atomic", ram: "memory", recurring: "schedule",
    redis: "database", reminder: "schedule", remind: "reminder schedule", remote: "external", renewal: "certificate", restrict: "access", revert: "upgrade",
    rollback: "upgrade", roster: "contact", scale: "several", scheduler: "schedule", secrets: "password", shared: "share", shutdown: "stop", signup: "register", silent: "silence",
    sla: "guarantee", spend: "cost budget", spending: "cost budget", ssl: "tls certificate", startup: "start", stranger: "access", subagent: "supervisor", syslog: "log", tail: "log", tenant: "separate", tenants: "separate", team: "access", temperature: "manifest",
    testing: "test", throttle: "quota", timezone: "utc", tokens: "budget", trace: "tracing", traces: "tracing", tz: "utc timezone", undo: "retract",
    unban: "fail2ban", uninstall: "remove", update: "upgrade", vision: "picture image", webhook: "http", websocket: "bosh", whitelist: "access allow", zero: "downtime",
  };
  const forms = (word) => [word, word.replace(/s$/, ""), word.replace(/(ing|ed)$/, ""), word.replace(/(ing|ed)$/, "e")];
  const similar = (word) => [...new Set(forms(word).flatMap((form) => Object.hasOwn(synonyms, form) ? synonyms[form].split(" ") : []))];
  const rewrite = (query) => {
    if (/[+^~*"]|(^|\s)-|(title|text|tags):/.test(query)) return query;
    const words = query.toLowerCase().split(/[\s?!,;:()/]+/).map((word) => word.replace(/^['.]+|[.']+$/g, "")).filter((word) => word);
    const isFinished = /[\s?!.)]$/.test(query);
    const uncommon = words.filter((word, i) => !common.has(word) || (i === words.length - 1 && !isFinished));
    if (!uncommon.length) return query;
    const rare = uncommon.filter((word) => !frequent.has(word));
    const counted = rare.length ? rare : uncommon;
    const last = counted.length - 1;
    if (counted.length === 1 && /^[a-z_]+(\.[a-z_]+)+$/.test(counted[0])) return counted[0].split(/[._]/).map((part) => `+${part}`).join(" ");
    return counted.flatMap((word, i) => {
      const parts = word.split(/[._\-]/).filter((part) => part && !common.has(part));
      const isBeginning = !isFinished && i === last && word === words.at(-1);
      return [
        ...(parts.length ? parts : [word]).map((part) => `${part}^20`),
        ...parts.filter((part) => part.length > 5).map((part) => `${part}~1^1`),
        ...(isBeginning && parts.length ? [`${parts.at(-1)}*^20`] : []),
        ...similar(word).filter((other) => !counted.includes(other)).map((other) => `${other}^10`),
      ];
    }).join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const isQuery = message && message.type === 2 && typeof message.data === "string";
    return post.call(this, isQuery ? { ...message, data: rewrite(message.data) } : message, ...rest);
  };
})();
