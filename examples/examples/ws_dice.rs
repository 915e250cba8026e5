//! A WebSocket server of one function: `roll 6` throws a die of six sides.
//!
//! Run `cargo run --example ws_dice -- 127.0.0.1:9010`, connect with any WebSocket client, and send
//! `roll` with a number of sides.
//!
//! It shows:
//! - [`handler_fn`] makes a handler of a closure. It accepts every upgrade, and its connections
//!   have no data of their own. A server that decides about upgrades implements `Handler`.
//! - Each worker has its own closure on its own thread, so its state needs no lock.

use std::{cell::Cell, error::Error, net::SocketAddr};

use windlass_server::{Backend, Connection, Message, Options, RunningServer, Server, handler_fn};

/// A small generator (xorshift64). It is good enough for games, and not for secrets.
fn next(state: &Cell<u64>) -> u64 {
    let mut word = state.get();
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    state.set(word);
    word
}

/// Returns the number of sides of a request.
fn sides(text: &str) -> Option<u64> {
    text.strip_prefix("roll ")?.parse().ok().filter(|sides| *sides > 0)
}

fn start(address: SocketAddr, backend: Backend, seed: u64) -> std::io::Result<RunningServer> {
    let make = move |worker: windlass_server::Worker| {
        // The state must not be zero.
        let state = Cell::new((seed | 1).wrapping_add(2 * worker.index as u64));
        handler_fn(move |connection: &mut Connection<'_>, message: Message<'_>| {
            let answer = match message.as_str().and_then(sides) {
                Some(sides) => format!("{}", 1 + next(&state) % sides),
                None => "roll SIDES".to_owned(),
            };
            // It fails only if the connection is closing, or does not read its answers.
            let _ = connection.send(answer);
        })
    };
    Server::new(Options::new(), make).workers(2).backend(backend).listen(address).start()
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let running = start(address.parse()?, windlass_examples::backend()?, seed as u64)?;
    println!("listening on {}", running.addresses()[0]);
    Ok(running.join()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_die_shows_each_of_its_sides() {
        let backend = windlass_examples::backend().unwrap();
        let running = start("127.0.0.1:0".parse().unwrap(), backend, 7).unwrap();
        let address = &running.addresses()[0];
        let mut client = tungstenite::connect(format!("ws://{address}/")).unwrap().0;
        let mut roll = |request: &str| {
            client.send(request.into()).unwrap();
            client.read().unwrap().into_text().unwrap().to_string()
        };
        let mut seen = [false; 6];
        // The seed is fixed, so these are always the same throws.
        for _ in 0..200 {
            seen[roll("roll 6").parse::<usize>().unwrap() - 1] = true;
        }
        assert_eq!(seen, [true; 6]);
        assert_eq!(roll("roll 1"), "1");
        for wrong in ["roll", "roll 0", "roll x", "hello"] {
            assert_eq!(roll(wrong), "roll SIDES");
        }
        running.stop();
        running.join().unwrap();
    }
}
