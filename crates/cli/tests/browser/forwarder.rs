//! A port that stays while the server behind it comes and goes: a restart on the same port would
//! race others for it.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Passes connections on to wherever it is told. Its thread ends with the process.
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
                // Without a server, or with one that refuses, the connection ends without an
                // answer.
                if let Some(Ok(server)) = target.map(TcpStream::connect) {
                    pass_on(&client, &server);
                }
            }
        });
        Self { address, target }
    }

    /// New connections go to `target` from now on, or nowhere.
    pub(crate) fn forward_to(&self, target: Option<SocketAddr>) {
        *self.target.lock().expect("nobody panics with it") = target;
    }
}

/// Copies both ways, each until its end, which is passed on too.
fn pass_on(one: &TcpStream, other: &TcpStream) {
    for (from, to) in [(one, other), (other, one)] {
        let mut from = from.try_clone().expect("a descriptor is left");
        let mut to = to.try_clone().expect("a descriptor is left");
        thread::spawn(move || {
            // A connection that is reset has ended as well.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}
