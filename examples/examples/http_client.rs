//! An HTTP client with a pool of connections: that of hyper-util.
//!
//! `cargo run --example http_client -- http://127.0.0.1:9012/` prints the answer's head and body.
//!
//! It shows:
//! - The client asks for connections that are `Send`. `WindlassConnector` makes such ones, which
//!   stay on this thread all the same.
//! - A body is read piece by piece, and a time limit holds for all of it.

use std::{error::Error, io, io::Write, time::Duration};

use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes};
use hyper_util::client::legacy::Client;
use windlass_http::WindlassConnector;
use windlass_task::{
    Executor,
    rt::{WindlassExecutor, WindlassTimer},
    time::timeout,
};

type Failure = Box<dyn Error + Send + Sync>;
type Pool = Client<WindlassConnector, Empty<Bytes>>;

fn pool() -> Pool {
    Client::builder(WindlassExecutor)
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_timer(WindlassTimer::new())
        .build(WindlassConnector)
}

/// Writes the head and the body of an answer.
async fn fetch(client: &Pool, url: &str, out: &mut impl Write) -> Result<(), Failure> {
    let request = Request::get(url).body(Empty::new())?;
    let mut response = client.request(request).await?;
    writeln!(out, "{:?} {}", response.version(), response.status())?;
    for (name, value) in response.headers() {
        writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
    }
    writeln!(out)?;
    while let Some(frame) = response.frame().await {
        if let Ok(data) = frame?.into_data() {
            out.write_all(&data)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let url =
        windlass_examples::first_word().unwrap_or_else(|| "http://127.0.0.1:9012/".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        timeout(Duration::from_secs(30), fetch(&pool(), &url, &mut io::stdout())).await?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::{Response, body::Incoming, service::service_fn};
    use std::convert::Infallible;
    use windlass_http::{ConnectionInfo, HttpServer};
    use windlass_task::{net::TcpListener, spawn};

    #[test]
    fn answers_are_written_and_the_connection_is_used_again() {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let peer = service_fn(async |request: Request<Incoming>| {
                let info = request.extensions().get::<ConnectionInfo>().unwrap();
                Ok::<_, Infallible>(Response::new(info.peer.unwrap().to_string()))
            });
            spawn(HttpServer::new().connection_info(true).serve(listener, peer)).detach();
            let client = pool();
            let mut answers = Vec::new();
            for _ in 0..3 {
                let mut answer = Vec::new();
                fetch(&client, &url, &mut answer).await.unwrap();
                let answer = String::from_utf8(answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 OK\n"), "{answer}");
                answers.push(answer.lines().last().unwrap().to_owned());
            }
            assert!(answers[0].starts_with("127.0.0.1:"), "{answers:?}");
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
            assert!(fetch(&client, "ftp://here/", &mut Vec::new()).await.is_err());
        });
    }
}
