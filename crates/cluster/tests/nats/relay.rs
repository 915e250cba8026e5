//! A network between a node and nats-server, which a test can cut.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

/// Passes connections to a server. While it is cut, nothing passes, nothing is closed, and new
/// connections get no answer.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    locked: Mutex<Locked>,
    changed: Condvar,
}

#[derive(Default)]
struct Locked {
    is_cut: bool,
    has_ended: bool,
    sockets: Vec<TcpStream>,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap()
    }

    /// Waits while the network is cut.
    fn pass(&self) {
        let wait = |locked: &mut Locked| locked.is_cut && !locked.has_ended;
        drop(self.changed.wait_while(self.lock(), wait).unwrap());
    }
}

impl Relay {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                shared.pass();
                if shared.lock().has_ended {
                    return;
                }
                if let Ok(server) = TcpStream::connect(server) {
                    join(&shared, socket, server);
                }
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    pub(crate) fn cut(&self) {
        self.state.lock().is_cut = true;
    }

    pub(crate) fn heal(&self) {
        self.state.lock().is_cut = false;
        self.state.changed.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut locked = self.state.lock();
        locked.has_ended = true;
        for socket in &locked.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(locked);
        self.state.changed.notify_all();
        // Ends the wait for the next one.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(state: &Arc<State>, one: TcpStream, other: TcpStream) {
    for socket in [&one, &other] {
        socket.set_nodelay(true).unwrap();
        state.lock().sockets.push(socket.try_clone().unwrap());
    }
    let copies = (one.try_clone().unwrap(), other.try_clone().unwrap());
    for (from, to) in [(one, other), (copies.1, copies.0)] {
        let state = Arc::clone(state);
        thread::spawn(move || pass_all(&state, from, to));
    }
}

fn pass_all(state: &State, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        state.pass();
        match from.read(&mut buffer) {
            Ok(len) if len > 0 => {
                // What was read just before the cut waits too.
                state.pass();
                if to.write_all(&buffer[..len]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    state.pass();
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
