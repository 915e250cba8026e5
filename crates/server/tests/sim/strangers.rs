//! Peers that do not speak the protocol to its end.

use std::{io::Write as _, rc::Rc, time::Duration};

use windlass::sim::{self, Faults, Sim};

use crate::bed::{LATE_MAX, Session, address, again, options, serve};

/// Strangers that say nothing, a part of a request, or a whole one and nothing more. Returns how
/// many of them the server has opened.
fn strangers(sim: &Sim) -> usize {
    let session = Rc::new(Session { plans: vec![Vec::new()], ..Session::default() });
    let options = options();
    let hour = Duration::from_secs(3600);
    let serving = serve(sim, &session, &options, (hour, Duration::ZERO));
    let request = "GET /0 HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut open = Vec::new();
    for said in ["", &request[..40], request] {
        let mut stranger = again(|| sim.connect(address()));
        // A fault may have ended it.
        let _ = stranger.write_all(said.as_bytes());
        open.push(stranger);
    }
    let longest = options.handshake_timeout.max(options.idle_timeout.unwrap());
    sim.run_for(longest + options.close_timeout + LATE_MAX).unwrap();
    assert_eq!(serving.service.stats().connections, 0, "a stranger is still there");
    assert_eq!(session.opened.get(), session.closed.get());
    session.opened.get()
}

#[test]
fn a_stranger_waits_for_a_limited_time() {
    sim::check(|sim| _ = strangers(sim)).seeds(100).faults(Faults::hostile()).run();
    assert_eq!(strangers(&Sim::new(1, Faults::calm())), 1);
}
