//! Which TCP ports of a host accept connections: 500 attempts at a time, on one thread.
//!
//! `cargo run --release --example port_check -- 127.0.0.1 1-10000` prints the open ports.
//!
//! It shows:
//! - A bounded number of tasks. When one ends, the next begins, so a port without an answer holds
//!   up no other.
//! - A time limit around a connect, and the three ways in which it ends.
//! - An error of this side, such as a lack of descriptors, ends the program instead of counting as
//!   a closed port.

use std::{error::Error, io, net::IpAddr, ops::RangeInclusive, time::Duration};

use windlass_task::{Executor, JoinSet, net::TcpStream, time::timeout};

/// Maximum number of connects at the same time, each of which has a descriptor.
const AT_ONCE: usize = 500;

/// How long a port has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of the ports.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    /// In ascending order.
    open: Vec<u16>,
    refused: usize,
    silent: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = windlass_examples::words();
    let host = words.first().map_or("127.0.0.1", String::as_str).parse()?;
    let ports = parse_ports(words.get(1).map_or("1-1024", String::as_str))?;
    let reactor = windlass_examples::builder()?;
    let mut executor = Executor::builder().reactor(reactor).build()?;
    let report = executor.block_on(check(host, ports, AT_ONCE))?;
    for port in report.open {
        println!("{port}");
    }
    eprintln!("{} ports refused, {} did not answer", report.refused, report.silent);
    Ok(())
}

/// Parses `80` or `1-1024`.
fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, Box<dyn Error>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let wrong = |error| format!("ports are `80` or `1-1024`, not `{text}`: {error}");
    Ok(first.parse().map_err(wrong)?..=last.parse().map_err(wrong)?)
}

async fn check(
    host: IpAddr,
    mut ports: impl Iterator<Item = u16>,
    at_once: usize,
) -> io::Result<Report> {
    let mut report = Report::default();
    let mut attempts = JoinSet::new();
    loop {
        let next = if attempts.len() < at_once { ports.next() } else { None };
        if let Some(port) = next {
            attempts.spawn(async move {
                let connect = TcpStream::connect((host, port));
                (port, timeout(ANSWER_TIMEOUT, connect).await)
            });
            continue;
        }
        let Some(ended) = attempts.join_next().await else { break };
        match ended? {
            (port, Ok(Ok(_connection))) => report.open.push(port),
            (_, Ok(Err(error))) if error.kind() == io::ErrorKind::ConnectionRefused => {
                report.refused += 1;
            }
            (_, Ok(Err(error))) => return Err(error),
            (_, Err(_elapsed)) => report.silent += 1,
        }
    }
    report.open.sort_unstable();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

    use super::*;

    #[test]
    fn listeners_are_found_among_ports_that_refuse() {
        let listeners = [(); 30].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let mut open = listeners.map(|listener| (listener.local_addr().unwrap().port(), listener));
        open.sort_unstable_by_key(|(port, _)| *port);
        // Bound sockets that do not listen keep their ports from others, and refuse.
        let closed = [(); 20].map(|()| {
            let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&bound, &std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address: std::net::SocketAddr = getsockname(&bound).unwrap().try_into().unwrap();
            (address.port(), bound)
        });
        let open_ports: Vec<u16> = open.iter().map(|(port, _)| *port).collect();
        let ports = closed.iter().map(|(port, _)| *port).chain(open_ports.iter().rev().copied());
        for at_once in [1, 7, AT_ONCE] {
            let reactor = windlass_examples::builder().unwrap();
            let mut executor = Executor::builder().reactor(reactor).build().unwrap();
            let report = check(Ipv4Addr::LOCALHOST.into(), ports.clone(), at_once);
            let report = executor.block_on(report).unwrap();
            let expected = Report { open: open_ports.clone(), refused: closed.len(), silent: 0 };
            assert_eq!(report, expected, "{at_once} at once");
        }
    }

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!(parse_ports("80").unwrap(), 80..=80);
        assert_eq!(parse_ports("1-1024").unwrap(), 1..=1024);
        for wrong in ["", "-", "1-", "http", "70000", "1-2-3"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }
}
