//! A first program: one descriptor, one timer, a stop.
//!
//! The README shows it, to the letter (`tests/readme.rs` compares). Run it with
//! `cargo run --example first`.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use windlass::{Reactor, Turn, interest};

fn main() -> io::Result<()> {
    let (mut here, there) = UnixStream::pair()?;
    there.set_nonblocking(true)?;

    let mut reactor = Reactor::new()?;
    interest().read().with_fd(there).with_handler(on_ready).register_into(&mut reactor)?;
    reactor.after(Duration::from_millis(20), move || {
        here.write_all(b"hello").expect("the other end is open");
    })?;
    reactor.run()
}

/// Called whenever there is something to read. Handlers take what they need, in any order.
fn on_ready(stream: &mut UnixStream, mut turn: Turn<'_>) {
    let mut buffer = [0; 64];
    match stream.read(&mut buffer) {
        Ok(count) => println!("{}", String::from_utf8_lossy(&buffer[..count])),
        // A spurious wake-up: the handler is called again.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
        Err(error) => println!("cannot read: {error}"),
    }
    turn.stop();
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs_to_its_end() {
        super::main().expect("it ends well");
    }
}
