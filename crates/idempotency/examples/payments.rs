//! A payment service whose POSTs run once for an `Idempotency-Key`, on as many instances as you
//! like.
//!
//! ```console
//! $ tenure dev &
//! $ TENURE_ENDPOINTS=127.0.0.1:7701,127.0.0.1:7702,127.0.0.1:7703 \
//!     cargo run --release -p tenure-idempotency --example payments -- 127.0.0.1:8080
//! $ curl -i localhost:8080/payments -H 'X-Account: ada' -H 'Idempotency-Key: "a-new-one"' -d 500
//! ```
//!
//! The second curl has the first one's answer, with `Idempotent-Replayed: true`. A body that is no
//! number is refused (400, which is stored); `-d 13` fails (500, which is released).
#![expect(clippy::print_stderr, reason = "it says where it listens")]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tenure_client::{Client, LeaseHandle};
use tenure_idempotency::IdempotencyLayer;
use tokio::net::TcpListener;

/// Who pays.
#[derive(Debug, Clone)]
struct Account(String);

/// Payments made by this instance.
type Ledger = Arc<AtomicU64>;

/// Stands for a real authentication: it believes what it is told.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let account = request.headers().get("x-account").and_then(|account| account.to_str().ok());
    if let Some(account) = account.map(|account| Account(account.to_owned())) {
        request.extensions_mut().insert(account);
    }
    next.run(request).await
}

type Answer = (StatusCode, [(HeaderName, String); 2], String);

fn answer(status: StatusCode, location: String, body: String) -> Answer {
    (status, [(CONTENT_TYPE, "application/json".to_owned()), (LOCATION, location)], body)
}

async fn pay(
    State(ledger): State<Ledger>,
    Extension(Account(account)): Extension<Account>,
    Extension(lease): Extension<LeaseHandle>,
    amount: String,
) -> Answer {
    let Ok(amount) = amount.trim().parse::<u64>() else {
        let why = r#"{"error":"the amount must be a number of cents"}"#;
        return answer(StatusCode::BAD_REQUEST, String::new(), why.to_owned());
    };
    if amount == 13 {
        let why = r#"{"error":"out of luck, and worth a retry"}"#;
        return answer(StatusCode::INTERNAL_SERVER_ERROR, String::new(), why.to_owned());
    }
    let number = ledger.fetch_add(1, Ordering::Relaxed) + 1;
    // A database would refuse a token smaller than one that it has seen for this payment.
    let token = lease.token().get();
    let made = format!(r#"{{"payment":{number},"amount":{amount},"token":{token}}}"#);
    answer(StatusCode::CREATED, format!("/accounts/{account}/payments/{number}"), made)
}

async fn count(State(ledger): State<Ledger>) -> String {
    format!("{} payments were made here\n", ledger.load(Ordering::Relaxed))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("TENURE_ENDPOINTS").unwrap_or("127.0.0.1:7701".to_owned());
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".to_owned());
    let listen: SocketAddr = listen.parse()?;
    let holder = format!("payments at {listen}");
    let client = Client::builder().endpoints(endpoints.split(',')).holder(holder).build()?;
    let account =
        |parts: &Parts| parts.extensions.get::<Account>().map(|account| account.0.clone());
    let layer = IdempotencyLayer::builder(client, "payments", account).build()?;
    let service = Router::new()
        .route("/payments", post(pay))
        .route("/", get(count))
        .with_state(Ledger::default())
        .layer(layer.clone())
        .layer(from_fn(authenticate));
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on {listen}; Ctrl-C stops it");
    let stopped = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, service).with_graceful_shutdown(stopped).await?;
    layer.drain().await;
    Ok(())
}
