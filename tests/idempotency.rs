//! An axum service behind the idempotency layer, over real HTTP, while clients, handlers and the
//! cluster fail.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tenure_client::{Client, LeaseHandle, Leased, ManualBootTime};
use tenure_idempotency::{IdempotencyBuilder, IdempotencyLayer};
use tenure_tests::{Answered, Cluster, End, Http, LIMIT, eventually, within};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

const KEY: (&str, &str) = ("idempotency-key", "\"k\"");
const ADA: (&str, &str) = ("x-account", "ada");

/// A handler that is counted, and waits at a gate where there is one.
#[derive(Debug, Clone, Default)]
struct Handler {
    begun: Arc<AtomicUsize>,
    /// Of those that ended by themselves.
    ended: Arc<AtomicUsize>,
    gate: Option<Arc<Semaphore>>,
}

impl Handler {
    fn gated() -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..Self::default() }
    }

    fn open(&self) {
        self.gate.as_ref().unwrap().add_permits(1000);
    }

    /// Gives how many have begun before it.
    async fn run(&self) -> usize {
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        number
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    async fn until_begun(&self, count: usize) {
        eventually("the handler has begun", async || (self.begun() == count).then_some(())).await;
    }

    /// Answers 201, with its number, a cookie and two fields of one name.
    fn pays(&self) -> Router {
        let handler = self.clone();
        let pay = move |body: String| async move {
            let number = handler.run().await;
            let headers = [("location", format!("/payments/{number}"))];
            let more = [("x-note", "a"), ("set-cookie", "session=secret")];
            let mut response =
                (StatusCode::CREATED, headers, more, format!("{number}: {body}")).into_response();
            response.headers_mut().append("x-note", "b".parse().unwrap());
            response
        };
        Router::new().route("/payments", post(pay.clone())).route("/refunds", post(pay))
    }
}

/// A service on loopback, until it is dropped.
struct Service {
    http: Http,
    layer: IdempotencyLayer,
    task: AbortHandle,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    async fn start(client: Client, router: Router) -> Self {
        Self::start_with(client, router, |builder| builder).await
    }

    async fn start_with(
        client: Client,
        router: Router,
        set: impl FnOnce(IdempotencyBuilder) -> IdempotencyBuilder,
    ) -> Self {
        let account = |parts: &Parts| {
            let account = parts.headers.get("x-account")?.to_str().ok()?;
            Some(account.to_owned())
        };
        let layer = set(IdempotencyLayer::builder(client, "payments", account)).build().unwrap();
        Self::start_behind(layer.clone(), router.layer(layer)).await
    }

    async fn start_behind(layer: IdempotencyLayer, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = Http::at(listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { http, layer, task: task.abort_handle() }
    }

    /// Posts Ada's request with the key. None if the connection broke.
    async fn try_post(&self, body: &str) -> Option<Answered> {
        self.http.ask(Method::POST, "/payments", &[KEY, ADA], body.to_owned()).await
    }

    async fn post(&self, body: &str) -> Answered {
        self.try_post(body).await.expect("an answer")
    }

    /// The same in the background.
    fn posts(&self, body: &'static str) -> tokio::task::JoinHandle<Option<Answered>> {
        let http = self.http.clone();
        tokio::spawn(async move {
            http.ask(Method::POST, "/payments", &[KEY, ADA], body.to_owned()).await
        })
    }

    /// Posts until the answer is a replay.
    async fn until_replayed(&self, body: &str) -> Answered {
        eventually("it is replayed", async || Some(self.post(body).await).filter(is_replayed)).await
    }
}

fn is_replayed(answered: &Answered) -> bool {
    answered.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// Checks a problem, and gives it.
#[track_caller]
fn problem(answered: &Answered, status: u16, code: &str, outcome: &str) -> serde_json::Value {
    let problem = answered.json();
    assert_eq!((answered.status, &problem["code"]), (status, &code.into()), "{answered:?}");
    assert_eq!(answered.headers["content-type"], "application/problem+json");
    assert_eq!(problem["type"], format!("urn:tenure:problem:{code}"));
    assert_eq!(problem["status"], status);
    assert_eq!(problem["outcome"], outcome);
    let is_retryable = problem["retryable"].as_bool().unwrap();
    let says_when = answered.headers.contains_key("retry-after");
    assert!(is_retryable || !says_when, "{answered:?}");
    problem
}

/// A client that soon gives up.
fn hasty(cluster: &Cluster) -> Client {
    cluster.client().with_timeout(Duration::from_millis(700))
}

fn cut_off(cluster: &Cluster) {
    cluster.ids().into_iter().for_each(|id| cluster.links.cut(End::Client, End::Node(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_on_two_instances_run_the_handler_once_and_get_the_same_bytes() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let start =
        || Service::start_with(cluster.client(), handler.pays(), |builder| builder.wait(LIMIT));
    let services = [start().await, start().await];
    let calls: Vec<_> = (0..20).map(|number| services[number % 2].posts("500")).collect();
    let leader = cluster.leader().await;
    cluster.waiters(leader, 19).await;
    handler.open();
    let answers: Vec<Answered> =
        join_all(calls).await.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    assert_eq!(handler.begun(), 1);
    assert_eq!(answers.iter().filter(|answer| is_replayed(answer)).count(), 19);
    for answer in answers.iter().chain([&services[0].post("500").await]) {
        assert_eq!((answer.status, answer.text.as_str()), (201, "0: 500"));
        assert_eq!(answer.headers["location"], "/payments/0");
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
        let notes: Vec<_> = answer.headers.get_all("x-note").into_iter().collect();
        assert_eq!(notes, ["a", "b"]);
        let has_cookie = answer.headers.contains_key("set-cookie");
        assert_eq!(has_cookie, !is_replayed(answer), "a cookie is for the first one alone");
    }
}

/// What a handler, or a layer inside, makes of its request changes nothing of what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_changed_on_its_way_inside_is_still_the_one_that_came() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let change = from_fn(async |request: Request, next: Next| {
        let (mut parts, _) = request.into_parts();
        parts.headers.clear();
        next.run(Request::from_parts(parts, Body::from("changed"))).await
    });
    let service = Service::start(cluster.client(), handler.pays().layer(change)).await;
    let answers = [service.post("500").await, service.post("500").await];
    assert_eq!(answers.each_ref().map(|answer| answer.text.as_str()), ["0: changed"; 2]);
    assert_eq!(answers.each_ref().map(is_replayed), [false, true]);
    assert_eq!(handler.begun(), 1);
    problem(&service.post("changed").await, 422, "key_reused", "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_told_to_come_back_and_another_request_is_refused() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let service = Service::start(cluster.client(), handler.pays()).await;
    let first = service.posts("500");
    handler.until_begun(1).await;

    let duplicate = service.post("500").await;
    problem(&duplicate, 409, "in_progress", "refused");
    assert_eq!(duplicate.headers["retry-after"], "1");
    problem(&service.post("501").await, 422, "key_reused", "refused");

    handler.open();
    assert_eq!(first.await.unwrap().unwrap().text, "0: 500");
    let replayed = service.post("500").await;
    assert!(is_replayed(&replayed));
    assert_eq!(replayed.text, "0: 500");
    problem(&service.post("501").await, 422, "key_reused", "refused");
    let elsewhere = service.http.ask(Method::POST, "/refunds", &[KEY, ADA], "500".into());
    problem(&elsewhere.await.unwrap(), 422, "key_reused", "refused");
    let query = service.http.ask(Method::POST, "/payments?a=1", &[KEY, ADA], "500".into());
    problem(&query.await.unwrap(), 422, "key_reused", "refused");
    assert_eq!(handler.begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_panics_leave_no_trace_and_refusals_stay() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let runs = handler.clone();
    let pay = move || async move {
        match runs.run().await {
            0 => (StatusCode::INTERNAL_SERVER_ERROR, "out of paper"),
            1 => panic!("on fire"),
            _ => (StatusCode::CONFLICT, "sold out"),
        }
    };
    // A lease so long that only a release can free the record.
    let hour = Duration::from_secs(3600);
    let router = Router::new().route("/payments", post(pay));
    let service =
        Service::start_with(cluster.client(), router, |builder| builder.lease(hour)).await;

    let failed = service.post("500").await;
    assert_eq!((failed.status, failed.text.as_str()), (500, "out of paper"));
    assert!(service.try_post("500").await.is_none(), "the panic goes on to the server");
    let refused = service.post("500").await;
    assert_eq!((refused.status, is_replayed(&refused)), (409, false));
    let replayed = service.post("500").await;
    assert_eq!((replayed.status, replayed.text.as_str()), (409, "sold out"));
    assert!(is_replayed(&replayed));
    assert_eq!(handler.begun(), 3);
}

/// Tells when the future of a request is dropped.
struct Gone(mpsc::UnboundedSender<()>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.send(()).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_goes_on_when_its_client_hangs_up_and_the_retry_has_its_response() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let inner = Service::start(cluster.client(), Router::new()).await;
    let watched = handler.pays().layer(inner.layer.clone()).layer(from_fn(
        move |request: Request, next: Next| {
            let gone = Gone(gone.clone());
            async move {
                let response = next.run(request).await;
                drop(gone);
                response
            }
        },
    ));
    let service = Service::start_behind(inner.layer.clone(), watched).await;
    let first = service.posts("500");
    handler.until_begun(1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    within(LIMIT, "the server drops the request", is_gone.recv()).await.unwrap();
    problem(&service.post("500").await, 409, "in_progress", "refused");

    handler.open();
    assert_eq!(service.until_replayed("500").await.text, "0: 500");
    assert_eq!(handler.begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_outlives_the_crash_of_the_leader() {
    let mut cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let service = Service::start(cluster.client(), handler.pays()).await;
    let first = service.posts("500");
    handler.until_begun(1).await;
    let leader = cluster.leader().await;
    cluster.crash(leader).await;
    handler.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.text.as_str()), (201, "0: 500"));
    assert!(!first.headers.contains_key("idempotency-recorded"), "{first:?}");
    let replayed = service.post("500").await;
    assert!(is_replayed(&replayed), "{replayed:?}");
    assert_eq!((replayed.text.as_str(), handler.begun()), ("0: 500", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_proper_key_or_principal_runs_nothing() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let service = Service::start(cluster.client(), handler.pays()).await;
    let post = async |headers: &[(&str, &str)]| {
        service.http.ask(Method::POST, "/payments", headers, "500".into()).await.unwrap()
    };
    problem(&post(&[ADA]).await, 400, "key_missing", "refused");
    let long = format!("\"{}\"", "x".repeat(256));
    for key in ["k", "8e03978e-40d5", "\"open", "\"a\", \"b\"", "\"\"", "\"  \"", &long] {
        let malformed = post(&[ADA, ("idempotency-key", key)]).await;
        problem(&malformed, 400, "key_malformed", "refused");
    }
    problem(&post(&[ADA, KEY, KEY]).await, 400, "key_malformed", "refused");
    problem(&post(&[KEY]).await, 403, "no_principal", "refused");
    assert_eq!(handler.begun(), 0);

    let longest = format!("\"{}\"", "x".repeat(255));
    assert_eq!(post(&[ADA, ("idempotency-key", &longest)]).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_principal_is_another_record() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let service = Service::start(cluster.client(), handler.pays()).await;
    // Of any length and with any characters.
    let long = "urn:user:".repeat(200);
    for (number, account) in ["ada", "bob", "auth0|bob:1", &long].into_iter().enumerate() {
        for is_retry in [false, true] {
            let headers = [KEY, ("x-account", account)];
            let answer = service
                .http
                .ask(Method::POST, "/payments", &headers, account.into())
                .await
                .unwrap();
            assert_eq!(answer.text, format!("{number}: {account}"));
            assert_eq!(is_replayed(&answer), is_retry);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_over_the_limit_is_sent_and_its_request_never_runs_again() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let runs = handler.clone();
    let large = "x".repeat(5000);
    let pay = move || async move {
        runs.run().await;
        // Of no length that is known before.
        let chunks = unfold(0, |sent| async move {
            let chunk = Bytes::from("x".repeat(1000));
            (sent < 5).then_some((Ok::<_, Infallible>(chunk), sent + 1))
        });
        (StatusCode::CREATED, Body::from_stream(chunks))
    };
    let router = Router::new().route("/payments", post(pay));
    let service =
        Service::start_with(cluster.client(), router, |builder| builder.response_limit(4999)).await;
    let first = service.post("500").await;
    assert_eq!((first.status, first.text), (201, large));
    for _ in 0..2 {
        let again = problem(&service.post("500").await, 409, "response_not_kept", "refused");
        assert_eq!(again["response_status"], 201);
        assert_eq!(again["retryable"], false);
    }
    assert_eq!(handler.begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_breaks_off_has_run_and_never_runs_again() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let runs = handler.clone();
    let pay = move || async move {
        runs.run().await;
        let chunks = [Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))];
        Body::from_stream(futures_util::stream::iter(chunks))
    };
    let router = Router::new().route("/payments", post(pay));
    let service = Service::start(cluster.client(), router).await;
    problem(&service.post("500").await, 500, "response_broken", "unknown");
    let again = problem(&service.post("500").await, 409, "response_not_kept", "refused");
    assert_eq!(again["response_status"], 200);
    assert_eq!(handler.begun(), 1);
}

/// A body of chunks that the test sends one by one, its head sent, and the response.
async fn stream_to(
    service: &Service,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> (mpsc::Sender<Bytes>, tokio::task::JoinHandle<hyper::Response<hyper::body::Incoming>>) {
    let (chunks, sent) = mpsc::channel::<Bytes>(1);
    let body = unfold(sent, |mut sent| async move {
        let chunk = sent.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(chunk)), sent))
    });
    let socket = TcpStream::connect(service.http.address()).await.unwrap();
    let body = StreamBody::new(Box::pin(body));
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let mut request = hyper::Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body).unwrap();
    let response = tokio::spawn(async move { sender.send_request(request).await.unwrap() });
    (chunks, response)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_limit_runs_nothing() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let service =
        Service::start_with(cluster.client(), handler.pays(), |builder| builder.request_limit(10))
            .await;
    problem(&service.post("12345678901").await, 413, "body_too_large", "refused");
    let (chunks, response) = stream_to(&service, Method::POST, "/payments", &[KEY, ADA]).await;
    for chunk in ["123456", "78901"] {
        chunks.send(Bytes::from(chunk)).await.unwrap();
    }
    // It is refused though the body has not ended.
    assert_eq!(response.await.unwrap().status(), 413);
    drop(chunks);
    assert_eq!(handler.begun(), 0);
    assert_eq!(service.post("1234567890").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_covered_passes_through_chunk_by_chunk() {
    let cluster = Cluster::start(3).await;
    // Had it anything to do with the store, it would be refused.
    cut_off(&cluster);
    let echo = any(|request: Request| async move {
        Response::new(Body::from_stream(request.into_body().into_data_stream()))
    });
    let service = Service::start_with(hasty(&cluster), Router::new().route("/", echo), |builder| {
        builder.request_limit(3).response_limit(3).optional()
    })
    .await;
    // By its method in spite of its key, and for the want of one.
    for (method, headers) in [(Method::PUT, &[KEY, ADA][..]), (Method::POST, &[ADA])] {
        let (chunks, response) = stream_to(&service, method, "/", headers).await;
        chunks.send(Bytes::from("chunk 0")).await.unwrap();
        let response = within(LIMIT, "the response begins", response).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut echoed = response.into_body().into_data_stream();
        for number in 0..5 {
            let chunk = within(LIMIT, "a chunk comes back", echoed.next()).await;
            assert_eq!(chunk.unwrap().unwrap(), format!("chunk {number}"));
            chunks.send(Bytes::from(format!("chunk {}", number + 1))).await.unwrap();
        }
        drop(chunks);
        assert_eq!(echoed.next().await.unwrap().unwrap(), "chunk 5");
        assert!(echoed.next().await.is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_nothing_runs() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::default();
    let service = Service::start(hasty(&cluster), handler.pays()).await;
    cut_off(&cluster);
    let unreachable = service.post("500").await;
    problem(&unreachable, 503, "store_unreachable", "refused");
    assert_eq!(unreachable.headers["retry-after"], "1");
    assert_eq!(handler.begun(), 0);
    cluster.links.heal();
    eventually("it is run", async || (service.post("500").await.status == 201).then_some(())).await;
    assert_eq!(handler.begun(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_cannot_be_recorded_is_sent_marked_and_recorded_when_that_can_be() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let service = Service::start(hasty(&cluster), handler.pays()).await;
    let other = Service::start(cluster.client(), handler.pays()).await;
    let first = service.posts("500");
    handler.until_begun(1).await;
    cut_off(&cluster);
    handler.open();
    let first = first.await.unwrap().unwrap();
    assert_eq!((first.status, first.text.as_str()), (201, "0: 500"));
    assert_eq!(first.headers["idempotency-recorded"], "false");
    // What was sent so far is lost.
    cluster.ids().into_iter().for_each(|id| cluster.links.sever(End::Client, End::Node(id)));
    cluster.links.heal();
    let replayed = other.until_replayed("500").await;
    assert_eq!((replayed.text.as_str(), handler.begun()), ("0: 500", 1));
    assert!(!replayed.headers.contains_key("idempotency-recorded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_lease_is_lost_is_dropped() {
    let cluster = Cluster::start(3).await;
    let clock = ManualBootTime::default();
    let endpoints = cluster.ids().into_iter().map(|id| cluster.address(id).rpc);
    let builder = Client::builder().endpoints(endpoints).timeout(LIMIT);
    let client = builder.clock(Arc::new(clock.clone())).build().unwrap();
    let handler = Handler::gated();
    let service = Service::start(client, handler.pays()).await;
    let first = service.posts("500");
    handler.until_begun(1).await;
    clock.advance(Duration::from_secs(60));
    let lost = within(LIMIT, "it is dropped", first).await.unwrap().unwrap();
    problem(&lost, 503, "lease_lost", "unknown");
    assert!(lost.headers.contains_key("retry-after"));
    handler.open();
    let again = eventually("it runs again", async || {
        Some(service.post("500").await).filter(|answer| answer.status == 201)
    })
    .await;
    assert_eq!(again.text, "1: 500");
    assert_eq!(handler.ended.load(Ordering::SeqCst), 1, "the first one was dropped at the gate");
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_are_bounded_and_drained() {
    let cluster = Cluster::start(3).await;
    let handler = Handler::gated();
    let service =
        Service::start_with(cluster.client(), handler.pays(), |builder| builder.running_limit(1))
            .await;
    let first = service.posts("500");
    handler.until_begun(1).await;
    let headers = [("idempotency-key", "\"other\""), ADA];
    let other = || service.http.ask(Method::POST, "/payments", &headers, "500".into());
    problem(&other().await.unwrap(), 503, "too_many_running", "refused");
    // It goes on without its client.
    first.abort();
    let layer = service.layer.clone();
    let drained = tokio::spawn(async move { layer.drain().await });
    problem(&other().await.unwrap(), 503, "too_many_running", "refused");
    assert!(!drained.is_finished(), "a handler runs");
    handler.open();
    within(LIMIT, "it is drained", drained).await.unwrap();
    assert_eq!(handler.ended.load(Ordering::SeqCst), 1);
    problem(&other().await.unwrap(), 503, "shutting_down", "refused");
    let elsewhere = Service::start(cluster.client(), handler.pays()).await;
    assert!(is_replayed(&elsewhere.post("500").await), "it was recorded before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_has_its_token_and_a_foreign_record_is_no_response() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let pay =
        |Extension(lease): Extension<LeaseHandle>| async move { lease.token().get().to_string() };
    let router = Router::new().route("/payments", post(pay));
    let service = Service::start(client.clone(), router).await;
    let token: u64 = service.post("500").await.text.parse().unwrap();
    let name = service.layer.name_of("ada", "k").unwrap();
    let consistency = tenure_api::frame::Consistency::Linearizable;
    let (view, _) = client.get(&name, consistency).await.unwrap();
    assert_eq!(view.unwrap().token.get(), token);

    let foreign = service.layer.name_of("ada", "foreign").unwrap();
    let leased = client.lease(foreign.scope(), foreign.key()).acquire().await.unwrap();
    let Leased::Held(lease) = leased else { panic!("{leased:?}") };
    lease.complete(None).await.unwrap();
    let headers = [("idempotency-key", "\"foreign\""), ADA];
    let answer = service.http.ask(Method::POST, "/payments", &headers, "500".into()).await;
    problem(&answer.unwrap(), 500, "record_unreadable", "refused");
}
