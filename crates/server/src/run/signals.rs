//! The signals that are passed on.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const PASSED_ON: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals to this process, none of which ends it any more. Those that are ignored when it starts,
/// as under nohup(1), stay ignored, by the command too.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let listen =
            |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        let ignored = ignored();
        let passed_on = PASSED_ON.into_iter().filter(|signal| !is_in(*signal, ignored));
        passed_on.map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next one. When the future is dropped, none is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, arrivals) in &mut self.0 {
                if let Poll::Ready(Some(())) = arrivals.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The signals that this process ignores, as `SigIgn` of proc_pid_status(5): signal n is bit n - 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(signal: Signal, mask: u64) -> bool {
    mask >> signal.as_raw().saturating_sub(1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_bit_of_the_mask() {
        assert!(is_in(Signal::HUP, 0b1) && is_in(Signal::INT, 0b10));
        assert!(!is_in(Signal::INT, 0b101));
        assert!(is_in(Signal::PIPE, ignored()), "Rust ignores it");
    }
}
