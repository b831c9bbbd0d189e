"""Mistakes in a configuration file: one line for each, and all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from spade_coreason.config.loader import load_settings
from spade_coreason.exceptions import ConfigError
from tests.support.configurations import ECHO, agents_section, config_error, load_config

PREFIX = "config/platform.yaml: "
MISTAKES = [
    (
        agents_section(ECHO, 'jid: a@localhost, agent: "a:B"', 'jdi: b@localhost, agent: "a:B"'),
        'agents[2].jdi: unknown key; did you mean "jid"?',
    ),
    ("sever: {port: 1}", 'sever: unknown key; did you mean "server"?'),
    ("port: 5222", 'port: unknown key here; did you mean "server.port"?'),
    ("metrics: {port: 9464}", "metrics.port: unknown key; the keys are listen, hosts"),
    (
        agents_section(ECHO + ", max_interactions: 3"),
        'agents[0].max_interactions: unknown key here; did you mean "conversation.max_interactions"?',
    ),
    (
        agents_section(ECHO + ", conversation: {timeout: 3}"),
        'agents[0].conversation.timeout: unknown key; did you mean "timeout_s"?',
    ),
    ("server: {tls: {zzz: 1}}", "server.tls.zzz: unknown key; the keys are verify, required, ca_file"),
    ("1: x", "[1]: keys must be texts; quote the key"),
    (
        "server: {mode: prosodi}",
        'server.mode: must be auto, embedded, prosody or external, not "prosodi"; did you mean "prosody"?',
    ),
    ("server: {port: 70000}", "server.port: must be at most 65535, not 70000"),
    ("server: {port: x}", 'server.port: must be a whole number, not "x"'),
    ("server: {port: true}", "server.port: must be a number, not true"),
    ("server: {port: 1.5}", "server.port: must be a whole number, not 1.5"),
    ("server: [1]", "server: must contain keys with values, like {key: value}"),
    ("server: {tls: {verify: perhaps}}", 'server.tls.verify: must be true or false, not "perhaps"'),
    ("server: {tls: {ca_file: none.pem}}", "server.tls.ca_file: no such file: "),
    (
        "server: {domain: example.org}",
        'server.domain: a local server (mode: auto) has the domain "localhost"; remove the key, or ',
    ),
    ("server: {host: xmpp.example.org}", "server.host: a local server (mode: auto) runs on this machine only; remove the "),
    ("server: {mode: external, domain: 'a b'}", "server.domain: 'a b' is not a domain"),
    ("storage: {url: 'postgres://u:pw@h/d'}", "storage.url: must begin with sqlite+aiosqlite:/// and a file, or with p"),
    (
        "storage: {url: 'postgresql+asyncpg://u:pw@h'}",
        "storage.url: lacks the name of the database; write postgresql+asyncpg://user:password@h",
    ),
    (
        "storage: {url: 'postgresql+asyncpg://h:x/d'}",
        "storage.url: is not a database address; write postgresql+asyncpg://us",
    ),
    ("storage: {url: 'postgresql+asyncpg://h/d?password=p'}", "storage.url: put the user and password before the host: "),
    ("storage: {url: 'sqlite+aiosqlite:///:memory:'}", "storage.url: would store nothing; name a file: "),
    ("storage: {durability: fast}", 'storage.durability: must be full or normal, not "fast"'),
    ("conversation: {timeout_s: -1}", "conversation.timeout_s: must be at least 0, not -1"),
    ("conversation: {timeout_s: .inf}", "conversation.timeout_s: must be a finite number, not inf"),
    ("conversation: {assist_timeout_s: 0}", "conversation.assist_timeout_s: must be more than 0, not 0"),
    ("conversation: {max_interactions: many}", 'conversation.max_interactions: must be a whole number, not "many"'),
    ("conversation: {job_timeout_s: 0}", "conversation.job_timeout_s: must be more than 0, not 0"),
    ("job_timeout_s: 60", 'job_timeout_s: unknown key here; did you mean "conversation.job_timeout_s"?'),
    ("approvals: {timeout_h: 0.01}", "approvals.timeout_h: must be at least 0.0166667, not 0.01"),
    ("approvals: {timeout_h: 169}", "approvals.timeout_h: must be at most 168, not 169"),
    ("notifications: {per_day: 0}", "notifications.per_day: must be at least 1, not 0"),
    (
        "notifications: {quiet: 22-7}",
        'notifications.quiet: "22-7" is not a range of hours; write it like "22:00-07:00"',
    ),
    (
        "notifications: {quiet: '07:00-07:00'}",
        'notifications.quiet: quiet hours must not end when they begin; write them like "22:00-07:00"',
    ),
    (
        agents_section(ECHO + ", notifications: {zone: Europe/Berln}"),
        'agents[0].notifications.zone: unknown time zone "Europe/Berln"; did you mean "Europe/Berlin"?',
    ),
    ("limits: {concurrency: 0}", "limits.concurrency: must be at least 1, not 0"),
    ("access: {allow: example.org}", 'access.allow: must be a list, like [one, two], not "example.org"'),
    ("access: {ask: true}\n" + agents_section(ECHO), "access.ask: no operators are configured; name them: "),
    (
        "access: {groups: {staff: [a@localhost]}}\napprovals: {approvers: stuff}\n" + agents_section(ECHO),
        'approvals.approvers: there is no group "stuff"; did you mean "staff"?',
    ),
    (
        agents_section(ECHO + ", approvals: {approvers: finance}"),
        'agents[0].approvals.approvers: there is no group "finance"; define it: access: {groups: {finance: [JID]}}',
    ),
    (
        agents_section(ECHO + ", access: {groups: {finance: [localhost]}}, approvals: {approvers: finance}"),
        'agents[0].approvals.approvers: the group "finance" names no account that can be asked; add JIDs to access.groups.',
    ),
    (
        "access: {groups: {finance: [a@localhost, b@example.org]}}\n"
        + agents_section(ECHO + ", approvals: {approvers: finance}"),
        'agents[0].approvals.approvers: b@example.org of the group "finance" cannot answer without access; add them to a',
    ),
    ("approvals: {timeout_h: 169}", "approvals.timeout_h: must be at most 168"),
    ("approvals: {from_risk: high}", "approvals.from_risk: must be safe, standard, critical or never, "),
    ("access: {ask: true, operators: [example.org]}", "access.operators[0]: 'example.org' is not a JID; "),
    ("access: {operators: [a@example.org/desk]}", 'access.operators[0]: "a@example.org/desk" names a device; '),
    (
        agents_section("jid: writer@localhost, agent: 'a:B'") + "\nworkers: {together: [[writer@localhost, writr@localhost]]}",
        'workers.together[0][1]: writr@localhost is none of the agents; did you mean "writer@localhost"?',
    ),
    (
        agents_section("jid: a@localhost, agent: 'a:B'") + "\nworkers: {together: [[a@localhost], [a@localhost]]}",
        "workers.together[1][0]: a@localhost is already in together[0]; make one group of both, or name it once",
    ),
    (
        "access: {groups: {staff: [a@b.org]}}\nquotas: {person: {groups: {stuff: {}}}}",
        'quotas.person.groups.stuff: the group is not defined; did you mean "staff"?',
    ),
    (
        agents_section("jid: a@localhost, agent: 'a:B', quotas: {person: {groups: {vip: {}}}}"),
        "agents[0].quotas.person.groups.vip: the group is not defined; define it: access: {groups: ",
    ),
    ("quotas: {person: {users: {}}}", 'quotas.person.users: unknown key; did you mean "user"?'),
    ("agents: [{jid: a@b, agent: 'a:A', isolation: none}]", "agents[0].isolation: is gone; remove it. An agent that "),
    ("agents: [{jid: a@b, agent: 'a:A', memory_mb: 512}]", "agents[0].memory_mb: is gone; remove it. An agent that "),
    ("limits: {isolation: none}", "limits.isolation: unknown key; the keys are "),
    ("quotas: {total: {turns: -1}}", "quotas.total.turns: must be at least 0, not -1"),
    ("access: {allow: [a@b@c]}", "access.allow[0]: 'a@b@c' is not a JID: "),
    ("agents: {echo: 1}", "agents: must be a list, like [one, two]"),
    ("agents: [echo]", 'agents[0]: must contain keys with values, like {key: value}, not "echo"'),
    (agents_section("jid: echo@localhost"), "agents[0].agent: is missing; every agent needs it"),
    (agents_section("jid: echo, agent: 'a:B'"), "agents[0].jid: 'echo' is not a JID; write it like name@example.org"),
    (
        agents_section("jid: 'a b@localhost', agent: 'a:B'"),
        "agents[0].jid: 'a b@localhost' is not a JID: ' ' is not allowed before the @",
    ),
    (
        agents_section("jid: echo@localhost, agent: agents.echo.EchoAgent"),
        "agents[0].agent: 'agents.echo.EchoAgent' does not name an agent; write",
    ),
    (
        agents_section("jid: echo@localhost, agent: 'agents/echo.py:EchoAgent'"),
        "agents[0].agent: 'agents/echo.py:EchoAgent' does not name an agent; write it like \"agents.echo:EchoAgent\"",
    ),
    (agents_section(ECHO, ECHO), "agents[1].jid: echo@localhost is already the JID of agents[0]; give each agent its own JID"),
    (
        agents_section(ECHO, ECHO.replace("echo@localhost", "ECHO@LocalHost/desk")),
        "agents[1].jid: echo@localhost is already the JID of agents[0]",
    ),
    (
        f"server: {{people: [me@example.org]}}\n{agents_section(ECHO)}",
        "server.people[0]: me@example.org is not on the domain of the local server, localhost; write me@localhost",
    ),
    (
        f"server: {{people: [echo@localhost]}}\n{agents_section(ECHO)}",
        "server.people[0]: echo@localhost is the JID of an agent; give the person another one",
    ),
    (
        agents_section("jid: echo@example.org, agent: 'a:B'"),
        "agents[0].jid: echo@example.org is not on the domain of the local server, localhost; write echo@l",
    ),
    (agents_section(ECHO + ", password: 12345"), "agents[0].password: must be a text; quote it"),
    (agents_section(ECHO + ", password: ''"), "agents[0].password: is empty; "),
    (
        agents_section(ECHO + ", password: a, password_file: b"),
        "agents[0].password_file: conflicts with password; keep one of them",
    ),
    (agents_section(ECHO + ", password_file: secrets/echo"), "agents[0].password_file: "),
    (agents_section(ECHO + ", options: {1: 2}"), "agents[0].options[1]: must be a text; quote it"),
    (agents_section(ECHO + ", options: [1]"), "agents[0].options: must contain keys with values, like {key: value}"),
    (agents_section(ECHO + ", manifest: none.yaml"), "agents[0].manifest: no such file: "),
    (
        agents_section(ECHO + ", password: '${ECHO_PASSWORD}'"),
        "agents[0].password: the environment variable ECHO_PASSWORD is not set; set it, or write ${ECHO_PASS",
    ),
    (
        agents_section(ECHO + ", options: {a: ['${no name}']}"),
        "agents[0].options.a[0]: ${no name} names no variable; write ${VARIABLE} or ",
    ),
    (agents_section(ECHO + ", options: {a: 'x${HOME'}"), 'agents[0].options.a: "${" is not closed; '),
    (
        "server: {mode: external}\n" + agents_section("jid: my-echo@example.org, agent: 'a:B'"),
        'agents[0].password: is missing, and an external server requires it; write password: "${MY_ECHO_',
    ),
    ('conversation: {command_prefixes: ["!"]}', 'conversation.command_prefixes: must contain "/", which '),
    ("conversation: {command_prefixes: [/, '?']}", "conversation.command_prefixes[1]: "),
    ("agents: &a [*a]", "an anchor (&) contains itself"),
    ("- 1", "must contain keys with values, like server: {mode: auto}"),
    ("just text", "must contain keys with values"),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line.split(":")[0] for _, line in MISTAKES])
def test_a_mistake_is_one_line_with_file_place_cause_and_remedy(project: Path, text: str, line: str) -> None:
    assert config_error(project, text).startswith(PREFIX + line)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("p.yaml", "server: {mode: auto\nagents: []", "config/p.yaml:2:"),
        ("p.yaml", "server:\n\tmode: auto", "config/p.yaml:2:1: is not valid YAML: found character '\\t'"),
        ("p.yaml", "a: b: c", "config/p.yaml:1:5: is not valid YAML: mapping values are not allowed here"),
        ("p.yaml", "a: !!python/object:os.system x", "config/p.yaml:1:4: is not valid YAML: could not determine a con"),
        ("p.yaml", "a: 1\nb: \x00", "config/p.yaml:2:4: is not valid YAML: the character U+0000 is not allowed here"),
        ("p.yaml", "a: *b", "config/p.yaml:1:4: is not valid YAML: found undefined alias"),
        ("p.yaml", "a: 2025-02-31", "config/p.yaml: has an invalid value"),
        ("p.yaml", "server:\n  port: 1\n  port: 2", 'config/p.yaml:3:3: the key "port" is defined twice, first in line 2'),
        ("p.toml", "[server]\nport = ", "config/p.toml:2:8: is not valid TOML: invalid value"),
        ("p.toml", "[server]\nport = 1\nport = 2", "config/p.toml:3:9: is not valid TOML: cannot overwrite a value"),
        ("p.txt", "", "config/p.txt: must be a YAML or TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(project: Path, name: str, text: str, line: str) -> None:
    assert config_error(project, text, name).startswith(line)


def test_a_file_that_is_not_there_or_no_file(project: Path) -> None:
    (project / "d.yaml").mkdir()
    (project / "latin.yaml").write_bytes(b"a: \xff")
    for name, line in {
        "nope.yaml": f"nope.yaml: no such file (in {project}); name one with -c FILE",
        "no/pe.yaml": f"no/pe.yaml: no such file (the directory {project}/no does not exist either); name one with -c FILE",
        "d.yaml": "d.yaml: cannot be read: Is a directory; correct its permissions, or name another file with -c FILE",
        "latin.yaml": "latin.yaml: is not UTF-8 (byte 3); save it as UTF-8",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_settings(Path(name), project, {})
        assert str(caught.value) == line


def test_one_anchor_may_be_merged_into_several_agents(project: Path) -> None:
    settings = load_config(
        project,
        """
        agents:
          - &first {jid: a@localhost, agent: "a:B", register: true}
          - {<<: *first, jid: b@localhost}
        """,
    )
    assert [(agent.jid, agent.register_account) for agent in settings.agents] == [("a@localhost", True), ("b@localhost", True)]


# All at once


def test_all_mistakes_are_reported_at_once(project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            project,
            "servr: {port: 1}\nconversation: {max_interactions: -3}\n"
            + agents_section('jid: "a b@localhost", agent: "a:B"', ECHO + ", optons: {}", 'jdi: b@localhost, agent: "a:B"'),
        )
    first = caught.value
    assert [one.place.removeprefix(PREFIX) for one in (first, *first.others)] == [
        "agents[1].optons",
        "agents[2].jdi",  # and not that jid is missing
        "servr",
        "conversation.max_interactions",
        "agents[0].jid",
    ]


def test_all_mistakes_of_related_keys_and_of_variables_are_reported_at_once(project: Path) -> None:
    external = "server: {mode: external, domain: example.org}\n"
    for text, problems in {
        external + agents_section("jid: a@example.org, agent: 'a:B'", "jid: a@example.org, agent: 'a:B', password: ''"): [
            "agents[0].password: is missing",
            "agents[1].jid: a@example.org is already the JID of agents[0]",
            "agents[1].password: is empty",
        ],
        external + agents_section(*(f"jid: {name}@example.org, agent: 'a:B', password: '${{{name}}}'" for name in "xy")): [
            "agents[0].password: the environment variable x is not set",
            "agents[1].password: the environment variable y is not set",
        ],
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(project, text)
        lines = [str(one) for one in (caught.value, *caught.value.others)]
        assert len(lines) == len(problems)
        assert all(line.startswith(PREFIX + beginning) for line, beginning in zip(lines, problems, strict=True)), lines


@pytest.mark.parametrize("admission", ["allow: [localhost, b@example.org]", "operators: [b@example.org]", "roster: true"])
def test_approvers_may_be_all_who_can_have_access(project: Path, admission: str) -> None:
    text = f"access: {{groups: {{finance: [b@example.org, example.com]}}, {admission}}}\napprovals: {{approvers: finance}}\n"
    settings = load_config(project, text + agents_section(ECHO))
    assert settings.approvals_of(settings.agents[0]).approvers == "finance"
