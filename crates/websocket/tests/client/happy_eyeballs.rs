//! Several addresses, as RFC 8305 says.

use std::{io, time::Duration};

use tokio::io::duplex;
use windlass_websocket::client::{Client, ConnectError, Phase};

use crate::fake::{Fake, paused};

const FOUR: &[&str] = &["[2001:db8::1]:80", "[2001:db8::2]:80", "192.0.2.1:80", "192.0.2.2:80"];

fn order(fake: &Fake) -> Vec<(String, u128)> {
    let attempts = fake.attempts.lock().expect("no test panicked");
    attempts.iter().map(|(address, at)| (address.to_string(), *at)).collect()
}

#[test]
fn families_alternate_250_ms_apart() {
    paused(async {
        let fake = Fake::new(FOUR, |_| Box::pin(std::future::pending()));
        let (error, after) = fake.clone().failure(Client::new("ws://a.example/")).await;
        assert!(matches!(error, ConnectError::TimedOut(Phase::Connect)), "{error}");
        assert!((10_000..10_010).contains(&after), "after {after} ms");
        let expected = [(FOUR[0], 0), (FOUR[2], 250), (FOUR[1], 500), (FOUR[3], 750)];
        for ((address, at), (wanted, wanted_at)) in order(&fake).iter().zip(expected) {
            assert_eq!(address, wanted);
            // tokio's clock rounds up to milliseconds.
            assert!((wanted_at..wanted_at + 5).contains(at), "{address} at {at} ms");
        }
        assert_eq!(order(&fake).len(), 4);
    });
}

#[test]
fn after_a_failure_the_next_address_is_tried_at_once() {
    paused(async {
        let fake =
            Fake::new(FOUR, |_| Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }));
        let (error, after) = fake.clone().failure(Client::new("ws://a.example/")).await;
        let text = error.to_string();
        assert!(text.starts_with("no address could be reached: [2001:db8::1]:80: conn"), "{text}");
        assert!(text.contains("; 192.0.2.2:80: "), "{text}");
        assert_eq!((after, order(&fake).len()), (0, 4));
    });
}

#[test]
fn the_first_connection_wins_and_the_others_are_dropped() {
    paused(async {
        let (sender, mut dropped) = tokio::sync::mpsc::unbounded_channel::<()>();
        let fake = Fake::new(FOUR, move |address| {
            let guard = sender.clone();
            Box::pin(async move {
                if address.to_string() == FOUR[1] {
                    // The server's end is dropped: the handshake fails.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    return Ok(duplex(10).0);
                }
                std::future::pending::<()>().await;
                drop(guard);
                Err(io::ErrorKind::Other.into())
            })
        });
        let (error, after) = fake.clone().failure(Client::new("ws://a.example/")).await;
        assert_eq!(error.phase(), Phase::Handshake, "{error}");
        assert!((510..520).contains(&after), "after {after} ms");
        assert_eq!(order(&fake).len(), 3);
        drop(fake);
        assert!(dropped.recv().await.is_none(), "an attempt goes on");
    });
}
