//! A chat whose messages go through a broker: a thread of its own that decides who hears what.
//!
//! `cargo run --example chat_broker -- 127.0.0.1:9004`, and connect to `ws://127.0.0.1:9004/` with
//! any WebSocket client. A message is what its sender says to all; `/nick NAME` gives him a name,
//! `/who` tells who is there, `/kick NAME` sends somebody away.
//!
//! The workers only carry bytes: they pass what comes to the broker through a bounded mailbox, and
//! the broker answers through the server's [`Sender`], which it could as well do from a database's
//! or a message bus's thread. Where the broker cannot keep up, clients are told so, and nothing
//! grows.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    error::Error,
    io,
    net::SocketAddr,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use windlass_flow::{Bounds, Latch, Mailbox, Sender as Inlet, weighed_mailbox};
use windlass_server::{
    CloseCode, Closed, Connection, ConnectionId, Handler, Hub, Message, Options, RunningServer,
    Sender, SenderError, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// Everybody listens to it.
const TOPIC: &str = "chat";

/// What the broker hears of.
enum Heard {
    Came(ConnectionId),
    Said(ConnectionId, String),
    Went(ConnectionId),
}

/// What the workers do: nothing but to pass on.
struct Carrier {
    broker: Inlet<Heard>,
    /// Who has gone while the broker could not be told: he is told with the next.
    gone: RefCell<Vec<ConnectionId>>,
}

impl Handler for Carrier {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_open(&self, connection: &mut Connection<'_>, _: &mut ()) {
        connection.subscribe(TOPIC);
        if self.broker.try_push(Heard::Came(connection.id())).is_err() {
            let _ = connection.close(CloseCode::TRY_AGAIN_LATER, "too many come at once");
        }
    }

    fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
        let Some(text) = message.as_str() else {
            let _ = connection.close(CloseCode::UNSUPPORTED, "this is a chat of text");
            return;
        };
        if self.broker.try_push(Heard::Said(connection.id(), text.to_owned())).is_err() {
            let _ = connection.send("* too much is being said, try again");
        }
    }

    fn on_close(&self, _: &mut Hub<'_>, _: &mut (), closed: &Closed<'_>) {
        // A worker must not wait. There are never more of them than there were connections.
        let mut gone = self.gone.borrow_mut();
        gone.push(closed.id);
        gone.retain(|id| self.broker.try_push(Heard::Went(*id)).is_err());
    }
}

/// Who is there, and by which name.
struct Broker {
    names: BTreeMap<ConnectionId, String>,
    sender: Sender,
    came: u64,
}

impl Broker {
    fn hear(&mut self, heard: Heard) -> Result<(), SenderError> {
        match heard {
            Heard::Came(id) => {
                self.came += 1;
                let name = format!("guest {}", self.came);
                self.sender.publish(TOPIC, format!("* {name} has come").as_str())?;
                self.names.insert(id, name);
                Ok(())
            }
            Heard::Said(id, text) => self.answer(id, &text),
            Heard::Went(id) => match self.names.remove(&id) {
                Some(name) => self.sender.publish(TOPIC, format!("* {name} has gone").as_str()),
                None => Ok(()),
            },
        }
    }

    fn answer(&mut self, id: ConnectionId, text: &str) -> Result<(), SenderError> {
        let Some(name) = self.names.get(&id).cloned() else { return Ok(()) };
        match text.split_once(' ').unwrap_or((text, "")) {
            ("/who", _) => {
                let mut names: Vec<&str> = self.names.values().map(String::as_str).collect();
                names.sort_unstable();
                self.sender.send(id, format!("* here: {}", names.join(", ")).as_str())
            }
            ("/nick", wanted)
                if self.names.values().any(|taken| taken == wanted) || wanted.is_empty() =>
            {
                self.sender.send(id, "* that name cannot be had")
            }
            ("/nick", wanted) => {
                self.names.insert(id, wanted.to_owned());
                self.sender.publish(TOPIC, format!("* {name} is {wanted}").as_str())
            }
            ("/kick", whom) => match self.names.iter().find(|(_, name)| *name == whom) {
                Some((&whom, _)) => self.sender.close(
                    whom,
                    CloseCode::POLICY_VIOLATION,
                    "somebody wanted you to go",
                ),
                None => self.sender.send(id, "* nobody has that name"),
            },
            _ => self.sender.publish(TOPIC, format!("{name}: {text}").as_str()),
        }
    }
}

/// The broker's thread: it waits for what is heard until nobody is left to tell it anything.
fn run_broker(mut inbox: Mailbox<Heard>, sender: Sender) -> Result<(), SenderError> {
    let mut broker = Broker { names: BTreeMap::new(), sender, came: 0 };
    while !(inbox.is_closed() && inbox.is_empty()) {
        for heard in inbox.drain(256) {
            match broker.hear(heard) {
                // The server has ended.
                Err(SenderError::Closed) => return Ok(()),
                other => other?,
            }
        }
        if inbox.latch().sleep() && inbox.is_empty() {
            inbox.latch().wait(None);
        }
        inbox.latch().awake();
    }
    Ok(())
}

type BrokerThread = JoinHandle<Result<(), SenderError>>;

fn start(address: SocketAddr, workers: usize) -> io::Result<(RunningServer, BrokerThread)> {
    // What is said weighs as much as it is long.
    let weigh = |heard: &Heard| if let Heard::Said(_, text) = heard { text.len() } else { 0 };
    let (inlet, inbox) =
        weighed_mailbox(Bounds::items(4096).bytes(16 << 20), Arc::new(Latch::new()?), weigh);
    let make = move |_| Carrier { broker: inlet.clone(), gone: RefCell::default() };
    let server = Server::new(Options::new(), make)
        .backend(windlass_examples::backend()?)
        .workers(workers)
        .listen(address)
        .start()?;
    let sender = server.sender();
    Ok((server, thread::spawn(move || run_broker(inbox, sender))))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9004".to_owned());
    let (server, broker) = start(address.parse()?, 2)?;
    println!("listening on ws://{}/; enter ends it", server.addresses()[0]);
    io::stdin().read_line(&mut String::new())?;
    server.drain(Duration::from_secs(5));
    server.join()?;
    broker.join().map_err(|_| "the broker has panicked")??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tungstenite::{Message as Frame, WebSocket, client, protocol::CloseFrame};

    type Client = WebSocket<std::net::TcpStream>;

    fn connect(server: &RunningServer) -> Client {
        let address = server.addresses()[0].socket_addr().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client(format!("ws://{address}/"), stream).unwrap().0
    }

    fn say(client: &mut Client, text: &str) {
        client.send(Frame::text(text)).unwrap();
    }

    /// What he hears next.
    fn hear(client: &mut Client) -> String {
        loop {
            match client.read().unwrap() {
                Frame::Text(text) => return text.to_string(),
                Frame::Close(Some(CloseFrame { code, reason })) => {
                    return format!("closed {}: {reason}", u16::from(code));
                }
                _ => {}
            }
        }
    }

    /// The workers do not matter: there are three, and two clients are on any of them.
    #[test]
    fn what_one_says_all_hear_in_the_same_order() {
        let (server, broker) = start("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let mut ada = connect(&server);
        assert_eq!(hear(&mut ada), "* guest 1 has come");
        let mut bob = connect(&server);
        for client in [&mut ada, &mut bob] {
            assert_eq!(hear(client), "* guest 2 has come");
        }
        say(&mut ada, "/nick Ada");
        say(&mut ada, "hello");
        for client in [&mut ada, &mut bob] {
            assert_eq!(hear(client), "* guest 1 is Ada");
            assert_eq!(hear(client), "Ada: hello");
        }
        say(&mut bob, "/who");
        assert_eq!(hear(&mut bob), "* here: Ada, guest 2");
        say(&mut bob, "/nick Ada");
        assert_eq!(hear(&mut bob), "* that name cannot be had");
        say(&mut ada, "/kick guest 2");
        assert_eq!(hear(&mut bob), "closed 1008: somebody wanted you to go");
        assert!(bob.read().is_err(), "and then it is over");
        assert_eq!(hear(&mut ada), "* guest 2 has gone");
        server.drain(Duration::from_secs(30));
        assert_eq!(hear(&mut ada), "closed 1001: ");
        assert!(ada.read().is_err());
        server.join().unwrap();
        broker.join().unwrap().unwrap();
    }

    #[test]
    fn bytes_are_not_talk() {
        let (server, broker) = start("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let mut client = connect(&server);
        assert_eq!(hear(&mut client), "* guest 1 has come");
        client.send(Frame::binary(vec![1, 2, 3])).unwrap();
        assert_eq!(hear(&mut client), "closed 1003: this is a chat of text");
        drop(client);
        server.stop();
        server.join().unwrap();
        broker.join().unwrap().unwrap();
    }
}
