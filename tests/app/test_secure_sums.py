"""A federation with masked messages: keys by certificates, the same bits, and refusals."""

import json

import numpy as np
import pytest

import tfp_bfl as bfl
from tests.certificates import certify
from tests.kit import fails, json_of, lines_of, refuses, summary_of
from tests.sites.test_deployment import OPTIONS, Channel, run
from tfp_bfl.errors import InvalidArgument
from tfp_bfl.files.arrays import stored_arrays
from tfp_bfl.sites.deployment import keys
from tfp_bfl.sites.deployment.channel import BEGIN, DESCRIBE, ROUND, Refusal
from tfp_bfl.sites.deployment.demo import HOSPITALS, write_hospitals
from tfp_bfl.sites.deployment.kits import SERVER
from tfp_bfl.sites.deployment.party_file import FILE
from tfp_bfl.sites.deployment.site import Site

pytestmark = pytest.mark.cpu_seconds(60)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    for name in HOSPITALS:
        (folder / name / "local").mkdir(parents=True)
    write_hospitals(folder)
    certify(folder, HOSPITALS, others={SERVER: "fl.example.org"})
    return folder


def sealed(folder, channel, name, options=OPTIONS, **how):
    return run(folder, channel, name, options, secure_sums=True, **how)


def test_two_sites_derive_the_same_key_and_others_none(kits):
    offers = {name: keys.offer(kits / name / "startup", name.encode()) for name in HOSPITALS}
    found = {name: keys.agree(kits / name / "startup", name.encode(), name, offers) for name in HOSPITALS}
    first, second, third = HOSPITALS
    assert found[first][second] == found[second][first] != found[first][third]
    assert len({key for of_party in found.values() for key in of_party.values()}) == 3
    assert all(len(key) == bfl.sites.KEY_BYTES for key in found[first].values())


def test_a_key_offer_of_another_site_is_refused(kits, tmp_path):
    certify(tmp_path, ["west"])
    true = {name: keys.offer(kits / name / "startup", name.encode()) for name in HOSPITALS}
    foreign = keys.offer(tmp_path / "west" / "startup", b"west")
    another = {**true["west"], "public": true["south"]["public"]}
    agree = lambda offers: keys.agree(kits / "north" / "startup", b"north", "north", offers)
    for lie in (foreign, {}, None, {**true["west"], "signature": "no base64!"}, another, true["south"]):
        refuses("key offered as that of west is not signed by west", agree, {**true, "west": lie})
    with pytest.raises(InvalidArgument, match="Two sites offer the same public key"):
        agree({**true, "west": keys.offer(kits / "west" / "startup", b"south")})
    # The server's certificate is by the same authority, and of no party.
    of_server = keys.offer(kits / SERVER / "startup", b"of the server")
    with pytest.raises(InvalidArgument, match=r"that of fl\.example\.org is not signed by fl\.example\.org"):
        agree({"north": true["north"], "fl.example.org": of_server})


def test_a_run_with_masks_has_a_result_and_the_server_no_numbers_of_a_site(kits):
    channel = Channel(kits)
    replies = {}
    reply = channel.reply

    def heard(task, site, content):
        found = reply(task, site, content)
        replies.setdefault(task, []).append(found)
        return found

    channel.reply = heard
    done = sealed(kits, channel, "sealed")
    summary = summary_of(done)
    clear = json.loads((run(kits, Channel(kits), "clear") / "summary.json").read_text())
    # Noise is of the run's name, so that the two differ by it.
    assert summary["accuracy"] == pytest.approx(clear["accuracy"], abs=0.06) and summary["clipped_numbers"] == 0
    answers = [stored_arrays(answer, "answer", 2**30) for answer in replies[ROUND]]
    masked = [arrays for arrays in answers if not {"proofs", "seeds"} & set(arrays)]
    assert len(answers) == 3 * len(masked) == 3 * 3 * OPTIONS["rounds"]
    for arrays in masked:
        numbers = np.concatenate([np.ravel(x) for name, x in arrays.items() if name.startswith("statistics")])
        assert numbers.dtype == np.int64 and np.mean(np.abs(numbers) > 2**50) > 0.99
        assert all(x.size <= 1 for name, x in arrays.items() if name.startswith("report"))
    described = json_of(done / "parties.json")
    assert all("BEGIN CERTIFICATE" in party["offer"]["certificate"] for party in described.values())


@pytest.mark.deep(after="tests/sites/test_sealed.py")
def test_an_absent_site_costs_a_round_only_its_numbers(kits):
    channel = Channel(kits)
    reply, gone = channel.reply, [channel.sites["west"]]

    def at_first_gone(task, site, content):
        if task == ROUND and site in gone:
            return gone.remove(site) or Refusal("it is not connected")
        return reply(task, site, content)

    channel.reply = at_first_gone
    done = sealed(kits, channel, "first-gone")
    rows = lines_of(done / "metrics.jsonl")
    assert [row["num_faulty"] for row in rows] == [1, 0]
    folder = kits / "north" / "local" / "memory" / "first-gone" / "promises"
    promises = [json_of(path) for path in sorted(folder.iterdir())]
    assert [promise["sets"]["0"] for promise in promises] == ["110", "111"]
    assert all(promise["told"] == 0 for promise in promises)


def test_a_site_takes_part_in_one_run_of_a_name(kits):
    """Else a server could have the sum of the same work over other sets, of other options, or in the clear."""
    channel = Channel(kits)
    sealed(kits, channel, "once", quorum=3)
    described = next(json.loads(content) for task, name, content in channel.sent if task == BEGIN and name == "north")
    site = channel.sites["north"]
    site.begin(json.dumps(described))
    others = [
        {**described, "options": {**described["options"], "learning_rate": 1e-9}},
        {**described, "secure_sums": None},
        {**described, "secure_sums": described["secure_sums"] * 2},
        {**described, "parties": 2, "offers": {name: x for name, x in described["offers"].items() if name != "west"}},
    ]
    for job in others:
        refuses("sent masked messages in another run of the name once", site.begin, json.dumps(job))
    refuses("The server gives this site the name or key of south", site.begin, json.dumps({**described, "number": 1}))
    site.begin(json.dumps(described))
    refuses("Another process of this site takes part", Site(kits / "north" / "local").begin, json.dumps(described))


def test_who_wants_only_sums_takes_part_in_no_other_run(kits, tmp_path):
    file = kits / "south" / "local" / FILE
    before = file.read_text()
    try:
        file.write_text(before + "only_secure_sums: true\n")
        fails("quorum is 3 .*south: Its file allows only runs with secure", run, kits, Channel(kits), "open", quorum=3)
    finally:
        file.write_text(before)


def west_with(kits, change):
    """Sites of which west describes another key offer: `change` of its own one and that of south."""
    channel = Channel(kits)
    own, south = (json.loads(channel.sites[name].describe()) for name in ("west", "south"))
    channel.lies[DESCRIBE, "west"] = json.dumps({**own, "offer": change(own["offer"], south["offer"])}).encode()
    return channel


@pytest.mark.parametrize(
    ("name", "change", "quorum", "message"),
    [
        ("between", None, 3, "quorum is 3 .*key offered as that of west is not signed by west"),
        ("same_key", lambda own, south: {**own, "public": south["public"]}, 2, "quorum is 2 .*offer the same public"),
        ("without", lambda own, south: None, 3, r"quorum is 3 \(west: It can't mask its messages"),
    ],
    ids=["between", "same_key", "without"],
)
def test_who_offers_no_key_of_its_own_is_named(kits, tmp_path, name, change, quorum, message):
    """A key of the server's in its place, that of another site, which excludes those who claim it alone, or none."""
    certify(tmp_path, ["west"])
    foreign = keys.offer(tmp_path / "west" / "startup", b"of the server's")
    channel = west_with(kits, change or (lambda own, south: foreign))
    fails(message, sealed, kits, channel, name, quorum=quorum)


def test_a_site_with_a_false_key_is_left_out_and_not_the_sites_that_refuse_it(kits):
    channel = west_with(kits, lambda own, south: {**own, "signature": "AAAA"})
    done = sealed(kits, channel, "false_key", {**OPTIONS, "rounds": 1})
    summary = summary_of(done)
    assert summary["num_clients"] == 2 and set(summary["parties"]) == {"north", "south"}
    assert "is not signed by west" in json_of(done / "parties.json")["west"]["refused"]


def test_rules_that_need_more_than_a_sum_are_refused_before_the_first_round(kits):
    channel = Channel(kits)
    refuses("needs more of the clients than a sum", sealed, kits, channel, "robust", {**OPTIONS, "robust": "median"})
    assert not (kits / "runs" / "robust").exists()
