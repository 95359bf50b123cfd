"""HTTP answers, in pieces and broken."""

from __future__ import annotations

import pytest

from tenure.http1 import BODY_BYTES, NotHttp, Reader, Response, request


def read(*pieces: bytes) -> Response:
    reader = Reader()
    for piece in pieces:
        response = reader.feed(piece)
        if response is not None:
            return response
    raise AssertionError("no answer in these bytes")


SIZED = b"HTTP/1.1 200 OK\r\nX-Tenure-Leader: 127.0.0.1:1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
)
ENDED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, ENDED])
def test_an_answer_is_the_same_however_it_is_cut(answer: bytes) -> None:
    whole = read(answer, b"")
    assert (whole.status, whole.body) == (200, b"hello")
    assert whole.keeps == (answer is not ENDED)
    bytewise = read(*[answer[at : at + 1] for at in range(len(answer))], b"")
    assert bytewise == whole


def test_a_status_without_a_body_ends_with_its_head() -> None:
    response = read(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (response.status, response.body, response.keeps) == (204, b"", True)


def test_a_connection_with_more_than_an_answer_carries_no_other() -> None:
    assert not read(SIZED + b"HTTP/1.1 200 OK").keeps


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"HTTP/1.1 200 OK\r\n", b""),
        (SIZED[:-1], b""),
        (CHUNKED[:-1], b""),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n",),
        (b"x" * 70_000,),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES + 1),),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,),
    ],
)
def test_what_is_no_answer_is_refused(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(NotHttp):
        read(*pieces)


def test_a_request_names_its_host_and_length() -> None:
    sent = request("POST", "127.0.0.1:7601", "/v1/acquire", b"{}")
    assert sent.startswith(b"POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1:7601\r\n")
    assert sent.endswith(b"Content-Length: 2\r\n\r\n{}")
