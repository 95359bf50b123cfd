//! One connection.

use std::time::Duration;

use tenure_api::frame::{
    Ask, Consistency, FRAME_BYTES, Hello, IN_FLIGHT, PROTOCOL, Reply, Role, Welcome,
};
use tenure_client::{Broken, Connection, ConnectionError, DialError, DialTimeouts, NotSent, Tcp};
use tenure_state_machine::Name;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::node::{AT, CLUSTER, PlayedNode, Seen};

const LONG: Duration = Duration::from_secs(60);

fn hello() -> Hello {
    Hello { protocol: PROTOCOL, cluster_id: None, role: Role::Client }
}

fn get(key: &str) -> Ask {
    let name = Name::new("mail", key).unwrap();
    Ask::Get { name, consistency: Consistency::Linearizable }
}

fn absent() -> Reply {
    Reply::Record { view: None, at: AT }
}

async fn dial(address: &str) -> Result<Connection, DialError> {
    Connection::dial(&Tcp, address, hello(), DialTimeouts::default()).await
}

#[tokio::test]
async fn a_dial_learns_cluster_and_node() {
    let node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    assert_eq!(connection.cluster_id(), CLUSTER);
    assert_eq!(connection.node_id(), 1);
    assert_eq!(connection.address(), node.address);
    assert!(!connection.is_closed());
}

#[tokio::test]
async fn a_dial_is_refused_by_reason_protocol_or_cluster() {
    let node = PlayedNode::greeting(Welcome::Refused { reason: "full".to_owned() }).await;
    let error = dial(&node.address).await.unwrap_err();
    assert!(matches!(error, DialError::Refused { reason, .. } if reason == "full"));

    let cluster_id = CLUSTER.to_owned();
    let other = Welcome::Accepted { protocol: PROTOCOL + 1, cluster_id, node_id: 1 };
    let node = PlayedNode::greeting(other).await;
    let error = dial(&node.address).await.unwrap_err();
    assert!(matches!(error, DialError::Protocol { found, .. } if found == PROTOCOL + 1));

    let node = PlayedNode::start().await;
    let wanted = Hello { cluster_id: Some("c2".to_owned()), ..hello() };
    let dialled = Connection::dial(&Tcp, &node.address, wanted, DialTimeouts::default()).await;
    assert!(matches!(dialled.unwrap_err(), DialError::Cluster { found, .. } if found == CLUSTER));
}

#[tokio::test]
async fn nobody_there_is_an_error_of_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    assert!(matches!(dial(&address).await.unwrap_err(), DialError::Connect { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_greets_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = dial(&address).await.unwrap_err();
    assert!(matches!(error, DialError::Timeout { step: "greet", .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_of_another_kind_is_no_node() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let web = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        // Keeps the socket open until the client has gone.
        let _ = socket.read_to_end(&mut Vec::new()).await;
    });
    let error = dial(&address).await.unwrap_err();
    assert!(matches!(error, DialError::Hello { source: Broken::Oversized(_), .. }), "{error:?}");
    web.await.unwrap();
}

#[tokio::test]
async fn answers_come_back_in_any_order() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let call = async |key| {
        let frame = connection.call(get(key), LONG, false).await.unwrap();
        (key, frame.id)
    };
    let play = async {
        let (first, line) = node.request().await;
        let (second, _) = node.request().await;
        line.reply(&second, Ok(absent()));
        line.reply(&first, Ok(absent()));
        (first, second)
    };
    let (a, b, (first, second)) = tokio::join!(call("a"), call("b"), play);
    assert_ne!(first.id, second.id);
    for (key, id) in [a, b] {
        let request = if first.id == id { &first } else { &second };
        assert_eq!(request.ask, get(key));
        assert!(!request.forwarded);
    }
}

#[tokio::test]
async fn the_node_is_told_less_than_the_budget_and_that_a_request_is_forwarded() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let call = connection.call(get("a"), Duration::from_secs(3), true);
    let play = async {
        let (request, line) = node.request().await;
        line.reply(&request, Ok(absent()));
        request
    };
    let (_, request) = tokio::join!(call, play);
    assert!((2500..3000).contains(&request.budget_ms), "{}", request.budget_ms);
    assert!(request.forwarded);
}

#[tokio::test]
async fn many_calls_share_a_connection() {
    let mut node = PlayedNode::start().await;
    let connection = std::sync::Arc::new(dial(&node.address).await.unwrap());
    let calls: Vec<_> = (0..10_000)
        .map(|n| {
            let connection = std::sync::Arc::clone(&connection);
            let key = n.to_string();
            tokio::spawn(async move { connection.call(get(&key), LONG, false).await })
        })
        .collect();
    let mut most = 0;
    let mut held = Vec::new();
    for _ in 0..10_000 {
        held.push(node.request().await);
        most = most.max(held.len());
        // Once it is full, every answer lets the next one through.
        if most >= IN_FLIGHT {
            for (request, line) in held.drain(..) {
                line.reply(&request, Ok(absent()));
            }
        }
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().reply, Ok(absent()));
    }
    assert_eq!(most, IN_FLIGHT);
}

#[tokio::test(start_paused = true)]
async fn a_full_connection_does_not_send() {
    let mut node = PlayedNode::start().await;
    let connection = std::sync::Arc::new(dial(&node.address).await.unwrap());
    let held: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let connection = std::sync::Arc::clone(&connection);
            tokio::spawn(async move { connection.call(get("a"), LONG, false).await })
        })
        .collect();
    for _ in 0..IN_FLIGHT {
        node.request().await;
    }
    assert!(connection.is_full());
    let error = connection.call(get("b"), Duration::from_secs(1), false).await.unwrap_err();
    assert!(matches!(error, ConnectionError::NotSent(NotSent::Full)));
    assert!(!error.is_sent());
    for call in held {
        call.abort();
    }
}

#[tokio::test]
async fn a_call_in_flight_is_lost_with_its_connection_and_a_later_one_is_not_sent() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let call = connection.call(get("a"), LONG, false);
    let play = async {
        let (_, line) = node.request().await;
        line.hang_up();
    };
    let (lost, ()) = tokio::join!(call, play);
    let lost = lost.unwrap_err();
    assert!(matches!(lost, ConnectionError::Lost(Broken::Closed)), "{lost:?}");
    assert!(lost.is_sent());
    assert!(connection.is_closed());
    let late = connection.call(get("a"), LONG, false).await.unwrap_err();
    assert!(matches!(late, ConnectionError::NotSent(NotSent::Broken(_))), "{late:?}");
}

#[tokio::test]
async fn garbage_breaks_the_connection() {
    let malformed: Vec<u8> = [&[3, 0, 0, 0][..], b"abc"].concat();
    let oversized = u32::try_from(FRAME_BYTES + 1).unwrap().to_le_bytes().to_vec();
    for (bytes, is_oversized) in [(malformed, false), (oversized, true)] {
        let mut node = PlayedNode::start().await;
        let connection = dial(&node.address).await.unwrap();
        let call = connection.call(get("a"), LONG, false);
        let play = async {
            let (_, line) = node.request().await;
            line.raw(bytes);
            node.hangup().await;
        };
        let (lost, ()) = tokio::join!(call, play);
        let ConnectionError::Lost(broken) = lost.unwrap_err() else { panic!("not lost") };
        assert_eq!(matches!(broken, Broken::Oversized(_)), is_oversized);
        assert_eq!(matches!(broken, Broken::Malformed(_)), !is_oversized);
        assert!(connection.is_closed());
    }
}

#[tokio::test]
async fn an_answer_in_pieces_is_one_answer_and_one_that_nobody_awaits_is_ignored() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let call = connection.call(get("a"), LONG, false);
    let play = async {
        let (request, line) = node.request().await;
        let stranger = tenure_api::frame::Request { id: request.id + 77, ..request.clone() };
        line.reply(&stranger, Ok(absent()));
        let frame =
            tenure_api::frame::ServerFrame { id: request.id, leader: None, reply: Ok(absent()) };
        let body = tenure_state_machine::codec::encode(&frame).unwrap();
        for byte in u32::try_from(body.len()).unwrap().to_le_bytes().into_iter().chain(body) {
            line.raw(vec![byte]);
        }
    };
    let (frame, ()) = tokio::join!(call, play);
    assert_eq!(frame.unwrap().reply, Ok(absent()));
}

#[tokio::test]
async fn dropping_a_call_cancels_it() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let request = tokio::select! {
        _ = connection.call(get("a"), LONG, false) => panic!("nobody answered"),
        (request, _) = node.request() => request,
    };
    assert_eq!(node.cancel().await, request.id);
    assert!(!connection.is_closed());
}

#[tokio::test]
async fn an_answered_call_is_not_cancelled() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    for _ in 0..2 {
        let play = async {
            let (request, line) = node.request().await;
            line.reply(&request, Ok(absent()));
        };
        let (answer, ()) = tokio::join!(connection.call(get("a"), LONG, false), play);
        assert!(answer.is_ok());
    }
    // Both requests were seen, and a cancellation of the first would have come between them.
    assert!(node.seen_already().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_over_its_budget_has_no_answer_and_is_cancelled() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let began = tokio::time::Instant::now();
    let error = connection.call(get("a"), Duration::from_secs(2), false).await.unwrap_err();
    assert!(matches!(error, ConnectionError::NoAnswer));
    assert!(error.is_sent());
    assert_eq!(began.elapsed().as_secs(), 2);
    let (request, _) = node.request().await;
    assert_eq!(node.cancel().await, request.id);
}

#[tokio::test]
async fn giving_up_ends_calls_and_closes_the_socket() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    let play = async {
        node.request().await;
        connection.give_up();
    };
    let (lost, ()) = tokio::join!(connection.call(get("a"), LONG, false), play);
    assert!(matches!(lost.unwrap_err(), ConnectionError::Lost(Broken::Silent)));
    node.hangup().await;
}

#[tokio::test]
async fn dropping_a_connection_closes_the_socket() {
    let mut node = PlayedNode::start().await;
    let connection = dial(&node.address).await.unwrap();
    assert!(matches!(node.next().await, Seen::Connected));
    drop(connection);
    node.hangup().await;
}
