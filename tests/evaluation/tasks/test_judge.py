"""The judge's client against a server of the test's own."""

import http.server
import json
import threading
import time

import pytest

from asd_jax.evaluation.grading.judge import Judge, JudgeError


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers with the next of the server's replies: status and body."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), json.loads(body)))
        status, reply = self.server.replies.pop(0)
        if status == "slow":
            time.sleep(reply)
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(reply if isinstance(reply, bytes) else json.dumps(reply).encode())

    def log_message(self, *unused):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as endpoint:
        endpoint.replies, endpoint.requests = [], []
        thread = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield endpoint
        endpoint.shutdown()
        thread.join()


def judge(server, **options):
    options = {"timeout_seconds": 5.0, "pause_seconds": 0.01} | options
    return Judge(f"http://127.0.0.1:{server.server_port}/v1/", "critic", **options)


def says(text):
    return 200, {"model": "critic-2", "choices": [{"message": {"content": text}}]}


def test_a_rating_is_read_and_the_question_sent(server):
    server.replies = [says("The form is Rating: [[5]]. This is good.\nRating: [[8.5]]")]
    rating = judge(server, api_key="key").rate(["Why?", "And?"], ["So.", "Thus."], "Because.")
    assert (rating.value, rating.model) == (8.5, "critic-2")
    path, headers, request = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer key"
    assert (request["model"], request["temperature"]) == ("critic", 0)
    text = request["messages"][1]["content"]
    order = [text.index(part) for part in ("Why?", "So.", "And?", "Thus.", "Because.")]
    assert order == sorted(order)


def test_busy_and_broken_servers_are_asked_again(server):
    server.replies = [(429, b"busy"), (503, b"down"), says("Rating: [[3]]")]
    assert judge(server).rate(["q"], ["a"]).value == 3.0
    assert len(server.requests) == 3


def test_after_the_last_attempt_the_reason_is_told(server):
    server.replies = [(500, b"boom"), (500, b"boom again")]
    with pytest.raises(JudgeError, match="no reply in 2 attempts: status 500: boom again"):
        judge(server, num_attempts=2).rate(["q"], ["a"])


def test_a_refusal_is_not_repeated_and_hides_the_key(server):
    server.replies = [(401, b"wrong key")]
    client = judge(server, api_key="secret")
    with pytest.raises(JudgeError, match="status 401: wrong key") as caught:
        client.rate(["q"], ["a"])
    assert len(server.requests) == 1
    assert "secret" not in str(caught.value) + repr(client)


def test_a_silent_server_is_given_up(server):
    server.replies = [("slow", 1.0)]
    with pytest.raises(JudgeError, match="timed out"):
        judge(server, timeout_seconds=0.2, num_attempts=1).rate(["q"], ["a"])


def test_nobody_there():
    client = Judge("http://127.0.0.1:9", "critic", num_attempts=1, timeout_seconds=2.0)
    with pytest.raises(JudgeError, match="no reply in 1 attempts"):
        client.rate(["q"], ["a"])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, b"<html>"), "not JSON"),
        ((200, b"\xff"), "not JSON"),
        ((200, {"choices": []}), r"no choices\[0\]"),
        ((200, ["choices"]), r"no choices\[0\]"),
        (says("Quite good."), "no rating"),
        (says(None), "no rating"),
        (says("Rating: [[11]]"), "no rating from 1 to 10"),
        (says("Rating: [[0]]"), "no rating from 1 to 10"),
    ],
)
def test_a_reply_without_a_rating_is_an_error(server, reply, message):
    server.replies = [reply]
    with pytest.raises(JudgeError, match=message):
        judge(server).rate(["q"], ["a"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "file:///etc/passwd"}, "url: got"),
        ({"url": "http://x", "num_attempts": 0}, "num_attempts: got 0"),
        ({"url": "http://x", "timeout_seconds": 0}, "timeout_seconds: got 0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Judge(model="critic", **options)


def test_answers_have_to_match_the_questions():
    with pytest.raises(ValueError, match="answers: got 1, allowed are 2"):
        Judge("http://x", "critic").rate(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="answers: got 0"):
        Judge("http://x", "critic").rate([], [])
