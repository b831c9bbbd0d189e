"""The data of doors: keys, webhooks, and the conversations and files of callers. The page has logins and news."""
