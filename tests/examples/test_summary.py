"""What the launcher makes of the peers' reports: the JSON line and the exit status."""

from __future__ import annotations

import json

import pytest
from swarm.board import Board
from swarm.reports import Death, Dying, Failed, Finished, Joined, Listening, RoundDone, decode, encode
from swarm.summary import judge, record

ROUNDS = 5


def done(round, world_size, *, lost=None, attempts=1, accuracy=None):
    sizes = {f"id{i}": 64 for i in range(world_size)}
    return RoundDone(round, 1 / round, attempts, world_size, "id0", sizes, lost or {}, 0.02, 0.01, accuracy)


class Run:
    """A run of ``peers`` peers in which ``victim`` dies in round 3; tests change one thing about it."""

    def __init__(self, peers=4, victim=1):
        self.board = Board(peers, ROUNDS)
        self.victim = victim
        for number in range(peers):
            self.tell(number, Listening(f"id{number}", 100 + number, [f"tcp://id{number}@127.0.0.1:4001"]))
            self.tell(number, Joined(peers, "id0"))

    def tell(self, number, report):
        return self.board.apply(number, decode(encode(report)))

    def train(self, *, attempts=2, contributed=False, noticed=True):
        for number in range(len(self.board.peers)):
            for round in range(1, ROUNDS + 1):
                if self.victim is None or round < 3:
                    self.tell(number, done(round, len(self.board.peers)))
                elif number == self.victim:
                    self.tell(number, Dying(3, 1000))
                    break
                else:
                    lost = {f"id{self.victim}": Death("connection lost", contributed)} if noticed and round == 3 else {}
                    self.tell(
                        number, done(round, len(self.board.peers) - 1, lost=lost, attempts=attempts if lost else 1)
                    )
        return self

    def end(self, *, sha="f" * 64, accuracy=0.93, rounds=ROUNDS, odd=None, codes=None):
        for number in range(len(self.board.peers)):
            if number == self.victim:
                self.board.exited(number, -9)
                continue
            different = number == odd
            self.tell(number, Finished(rounds, "0" * 64 if different else sha, accuracy))
            self.board.exited(number, (codes or {}).get(number, 0))
        return self

    def judge(self, kill=(1,)):
        return judge(self.board, kill=kill, dataset="mnist-5k", test_images=1000, seconds=7.06)


def test_a_good_run():
    outcome = Run().train().end().judge()
    assert outcome.problems == []
    assert outcome.code == 0
    assert outcome.line == {
        "accuracy": 0.93,
        "rounds": 5,
        "started": 4,
        "finished": 3,
        "lost": [1],
        "retried_rounds": 1,
        "identical": True,
        "seconds": 7.1,
        "dataset": "mnist-5k",
        "test_images": 1000,
    }
    assert json.loads(json.dumps(outcome.line)) == outcome.line


def test_a_death_whose_share_was_committed_is_good_too():
    outcome = Run().train(attempts=1, contributed=True).end().judge()
    assert outcome.code == 0
    assert outcome.line["retried_rounds"] == 0


def test_a_run_without_deaths():
    outcome = Run(victim=None).train().end().judge(kill=())
    assert outcome.code == 0
    assert (outcome.line["finished"], outcome.line["lost"], outcome.line["retried_rounds"]) == (4, [], 0)


def failed(outcome, *words):
    assert outcome.code == 1
    assert any(all(word in problem for word in words) for problem in outcome.problems), outcome.problems


def test_different_parameters():
    outcome = Run().train().end(odd=2).judge()
    failed(outcome, "parameters differ", "2: 00000000")
    assert outcome.line["identical"] is False


def test_low_accuracy():
    failed(Run().train().end(accuracy=0.8999).judge(), "accuracy", "0.90")
    assert Run().train().end(accuracy=0.90).judge().code == 0


def test_a_peer_that_was_to_die_and_did_not():
    failed(Run(victim=None).train().end().judge(kill=(1,)), "peer 1 was to be killed and was not")


def test_a_death_that_nobody_noticed():
    failed(Run().train(noticed=False).end().judge(), "peer 1", "no survivor noticed")


def test_a_death_without_retry_and_without_its_share():
    failed(Run().train(attempts=1, contributed=False).end().judge(), "round 3 was neither retried nor had its share")


def test_a_death_that_was_not_ordered():
    outcome = Run().train().end().judge(kill=())
    failed(outcome, "peer 1 did not finish")
    failed(outcome, "peer 1 was lost and was not to be", "connection lost")


def test_a_survivor_that_failed():
    run = Run().train().end()
    run.tell(2, Failed("no more", 1))
    run.board.peers[2].finished = None
    run.board.exited(2, 1)
    failed(run.judge(), "peer 2 did not finish: no more")


def test_a_survivor_that_ended_badly_after_its_last_round():
    failed(Run().train().end(codes={3: 1}).judge(), "peer 3 did not finish", "exit status 1")


def test_too_few_rounds():
    failed(Run().train().end(rounds=4).judge(), "4 of 5 rounds")


def test_nobody_finished():
    outcome = Run().train().judge()
    assert outcome.code == 1
    assert (outcome.line["accuracy"], outcome.line["identical"], outcome.line["finished"]) == (0.0, False, 0)


def test_a_stranger_that_was_lost_is_called_by_its_id():
    run = Run(victim=None)
    run.tell(0, done(1, 5, lost={"qwertyuiopasdf": Death("silent", False)}))
    outcome = run.train().end().judge(kill=())
    assert outcome.line["lost"] == ["qwertyui"]
    failed(outcome, "peer qwertyui was lost")


def test_leaving_in_good_order_is_no_loss():
    run = Run().train()
    assert run.tell(3, done(5, 3, lost={"id0": Death("left", True), "handmade": Death("left", False)})) == []
    run.end()
    # Who has finished and gone may look like a broken connection to those that hear of the last commit a little later.
    run.tell(3, done(5, 3, lost={"id2": Death("connection lost", True)}))
    outcome = run.judge()
    assert outcome.problems == []
    assert outcome.line["lost"] == [1]


def test_the_whole_record_is_json_with_every_round():
    run = Run().train().end()
    whole = json.loads(json.dumps(record(run.board, run.judge())))
    assert [r["round"] for r in whole["history"]] == [1, 2, 3, 4, 5]
    assert whole["history"][2]["attempts"] == 2
    assert whole["deaths"] == [
        {"peer": "id1", "round": 3, "cause": "connection lost", "contributed": False, "attempts": 2}
    ]
    assert whole["peers"]["2"] == "id2"
    assert whole["accuracy"] == 0.93


def test_a_death_is_told_once():
    run = Run()
    lost = {"id1": Death("connection lost", False)}
    told = [run.tell(number, done(1, 3, lost=lost, attempts=2)) for number in (0, 2, 3)]
    assert told == [["round 1: peer 1 was lost (connection lost); committed without its share"], [], []]


@pytest.mark.parametrize("line", ["", "5", "{}", '{"report":"Nothing"}', '{"report":"Finished"}', "Traceback"])
def test_what_is_no_report(line):
    with pytest.raises(ValueError):
        decode(line)


@pytest.mark.parametrize(
    "report",
    [
        Listening("id", 7, ["tcp://a:1"]),
        Joined(4, "id"),
        done(3, 2, lost={"x": Death("gone", True)}, accuracy=0.5),
        Dying(3, 5),
        Finished(5, "ff", 0.9),
        Failed("why", 2),
    ],
)
def test_reports_survive_the_pipe(report):
    assert decode(encode(report)) == report
    assert "\n" not in encode(report)
