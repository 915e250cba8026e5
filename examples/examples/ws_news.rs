//! Publish and subscribe: clients choose topics, and the server publishes the time to one of them.
//!
//! Run `cargo run --example ws_news -- 127.0.0.1:9009`, and connect to
//! `ws://127.0.0.1:9009/?topic=clock` with any WebSocket client. `+weather` subscribes to a topic,
//! `-weather` ends that, and `weather it rains` publishes to it.
//!
//! It shows:
//! - [`Handler::on_start`] starts a timer with a [`Hub`], which publishes without a connection.
//! - Names that clients choose are bounded: their number for each connection, and their length.
//! - Several workers. A publication reaches the subscribers of all of them, in the order of each
//!   publishing worker.

use std::{error::Error, net::SocketAddr, time::Duration};

use windlass_server::{
    Backend, Connection, Handler, Hub, Message, Options, RunningServer, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// Topics for each connection, and the length of their names in bytes.
const TOPICS_MAX: usize = 16;
const NAME_MAX: usize = 64;

struct News {
    /// The time between two publications to `clock`. One worker publishes.
    period: Option<Duration>,
}

impl Handler for News {
    /// The topics of a connection.
    type Data = Vec<String>;

    fn on_start(&self, hub: &mut Hub<'_>) {
        let Some(period) = self.period else { return };
        let mut count = 0_u64;
        let tick = move |hub: &mut Hub<'_>| {
            count += 1;
            hub.publish("clock", format!("clock {count}"));
        };
        hub.every(period, tick).expect("a new reactor has room for a timer");
    }

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Vec<String>>, Reject> {
        let topic = request.query_value("topic").unwrap_or_default();
        if topic.len() > NAME_MAX {
            return Err(Reject::status(400));
        }
        let topics = if topic.is_empty() { Vec::new() } else { vec![topic.into_owned()] };
        Ok(Accept::new(topics))
    }

    fn on_open(&self, connection: &mut Connection<'_>, topics: &mut Vec<String>) {
        for topic in topics {
            connection.subscribe(topic).expect("its length was checked");
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        topics: &mut Vec<String>,
        message: Message<'_>,
    ) {
        let text = message.as_str().unwrap_or_default();
        let answer = if let Some(topic) = text.strip_prefix('+') {
            match connection.subscribe(topic) {
                Ok(true) if topics.len() >= TOPICS_MAX => {
                    connection.unsubscribe(topic);
                    format!("{TOPICS_MAX} topics at most: end one by -TOPIC")
                }
                Ok(true) => {
                    topics.push(topic.to_owned());
                    format!("subscribed to {topic}")
                }
                Ok(false) => format!("{topic} is subscribed already"),
                Err(error) => error.to_string(),
            }
        } else if let Some(topic) = text.strip_prefix('-') {
            topics.retain(|subscribed| subscribed != topic);
            let was_subscribed = connection.unsubscribe(topic);
            format!("{topic}: {}", if was_subscribed { "ended" } else { "was not subscribed" })
        } else if let Some((topic, _)) = text.split_once(' ') {
            format!("sent to {} connections of this worker", connection.hub().publish(topic, text))
        } else {
            "+TOPIC, -TOPIC or TOPIC TEXT".to_owned()
        };
        // It fails only if the connection is closing.
        let _ = connection.send(answer);
    }
}

fn start(
    address: SocketAddr,
    backend: Backend,
    period: Duration,
) -> std::io::Result<RunningServer> {
    let make = move |worker: windlass_server::Worker| News {
        period: (worker.index == 0).then_some(period),
    };
    let mut options = Options::new();
    options.topic_len_max = NAME_MAX;
    Server::new(options, make).workers(2).backend(backend).listen(address).start()
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let backend = windlass_examples::backend()?;
    let running = start(address.parse()?, backend, Duration::from_secs(1))?;
    println!("listening on {}", running.addresses()[0]);
    Ok(running.join()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_get_the_clock_and_what_others_publish() {
        let backend = windlass_examples::backend().unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let running = start(local, backend, Duration::from_millis(1)).unwrap();
        let address = &running.addresses()[0];
        let connect =
            |query: &str| tungstenite::connect(format!("ws://{address}/{query}")).unwrap().0;
        let mut clock = connect("?topic=clock");
        let first = clock.read().unwrap().into_text().unwrap();
        assert!(first.starts_with("clock "), "{first}");

        let (mut reader, mut writer) = (connect(""), connect(""));
        let ask = |client: &mut tungstenite::WebSocket<_>, text: &str| {
            client.send(text.into()).unwrap();
            client.read().unwrap().into_text().unwrap()
        };
        assert_eq!(ask(&mut reader, "+weather"), "subscribed to weather");
        assert_eq!(ask(&mut reader, "+weather"), "weather is subscribed already");
        assert!(ask(&mut writer, "weather it rains").starts_with("sent to "));
        assert_eq!(reader.read().unwrap().into_text().unwrap(), "weather it rains");
        assert_eq!(ask(&mut reader, "-weather"), "weather: ended");
        let long = "x".repeat(NAME_MAX + 1);
        assert!(ask(&mut reader, &format!("+{long}")).contains("too long"));
        for number in 0..TOPICS_MAX {
            ask(&mut reader, &format!("+{number}"));
        }
        assert!(ask(&mut reader, "+one more").starts_with("16 topics at most"));
        assert!(tungstenite::connect(format!("ws://{address}/?topic={long}")).is_err());
        running.stop();
        running.join().unwrap();
    }
}
