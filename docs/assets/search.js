// The search of Material takes each word as the beginning of another: "do" finds "Docker", and "answering" not "answers". So a
// whole question finds everything. Here a finished word counts as a word in any form, and words such as "how" do not count.
// Messages of type 2 are queries (Material 9.8); lunr leaves words with a boost ("^1") to its stemmer.
(() => {
  const common = new Set(
    ("a about am an and any are as at be by can could did do does for from get had has have how i if in into is it its "
      + "just me my no not of on or our should so than that the their them there they this to us use was we were what when where "
      + "which while who why will with would you your").split(" "));
  // These are on nearly every page. They count only in a query of nothing else.
  const frequent = new Set(
    ("agent agents another answer answers change give know make makes mean need needs now one platform see set should show something "
      + "such tell thing use used user uses using want work works").split(" "));
  const rewrite = (query) => {
    if (/[+\-:^~*"]/.test(query)) return query;
    const words = query.toLowerCase().split(/[\s?!,;]+/).filter((word) => word);
    const isFinished = /[\s?!.]$/.test(query);
    const uncommon = words.filter((word, i) => !common.has(word) || (i === words.length - 1 && !isFinished));
    if (!uncommon.length) return query;
    const rare = uncommon.filter((word) => !frequent.has(word));
    const counted = rare.length ? rare : uncommon;
    const last = counted.length - 1;
    return counted.map((word, i) => /\w[._]\w/.test(word) ? word.split(/[._]/).filter((part) => part && !common.has(part)).map((part) => `+${part}`).join(" ")
      : isFinished || i < last ? `${word.replace(/[.']+$/, "")}^1` : word).join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const isQuery = message && message.type === 2 && typeof message.data === "string";
    return post.call(this, isQuery ? { ...message, data: rewrite(message.data) } : message, ...rest);
  };
})();
