//! A port that stays the same while the server behind it restarts. A restart on the same port could
//! fail, because another program may take the port.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Forwards connections to the current target. Its thread ends with the process.
pub(crate) struct Forwarder {
    pub(crate) address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Forwarder {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let target = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&target);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let target = *shared.lock().expect("nobody panics with it");
                // Without a server the connection ends without an answer.
                if let Some(Ok(server)) = target.map(TcpStream::connect) {
                    pass_on(&client, &server);
                }
            }
        });
        Self { address, target }
    }

    /// Sets the target of new connections.
    pub(crate) fn forward_to(&self, target: Option<SocketAddr>) {
        *self.target.lock().expect("nobody panics with it") = target;
    }
}

/// Copies both directions, each to its end, which is forwarded.
fn pass_on(one: &TcpStream, other: &TcpStream) {
    for (from, to) in [(one, other), (other, one)] {
        let mut from = from.try_clone().expect("a descriptor is left");
        let mut to = to.try_clone().expect("a descriptor is left");
        thread::spawn(move || {
            // A reset also ends the connection.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}
