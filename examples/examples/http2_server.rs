//! A server of HTTP/2 and HTTP/1.1, for hyper's services.
//!
//! `cargo run --example http2_server -- 127.0.0.1:9012`, then
//! `curl --http2-prior-knowledge 127.0.0.1:9012/`. The first bytes of a connection tell the
//! version.
//!
//! It shows:
//! - A service may use `Rc` and `Cell`, because nothing leaves the thread.
//! - The requests of one connection of HTTP/2 run at the same time.

use std::{cell::Cell, convert::Infallible, io, rc::Rc, time::Duration};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use windlass_http::HttpServer;
use windlass_task::{Executor, net::TcpListener, time::sleep};

async fn answer(request: Request<Incoming>, number: u64) -> Result<Response<String>, Infallible> {
    // The slow ones do not stop the others.
    if request.uri().path() == "/slow" {
        sleep(Duration::from_millis(20)).await;
    }
    Ok(Response::new(format!("request {number} by {:?}\n", request.version())))
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    let requests = Rc::new(Cell::new(0));
    let service = service_fn(move |request| {
        requests.set(requests.get() + 1);
        answer(request, requests.get())
    });
    HttpServer::new().on_event(|event| eprintln!("{event}")).serve(listener, service).await
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9012".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on http://{}/", listener.local_addr()?);
        serve(listener).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::{body::Bytes, client::conn::http2};
    use windlass_task::{net::TcpStream, rt::WindlassExecutor, spawn};

    #[test]
    fn a_fast_request_overtakes_a_slow_one_on_the_same_connection() {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            spawn(serve(listener)).detach();
            let (sender, connection) = http2::handshake(WindlassExecutor, stream).await.unwrap();
            spawn(async move { _ = connection.await }).detach();
            let ask = |path: &str| {
                let mut sender = sender.clone();
                let uri = format!("http://here{path}");
                let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
                async move {
                    let response = sender.send_request(request).await.unwrap();
                    let body = response.into_body().collect().await.unwrap().to_bytes();
                    String::from_utf8(body.to_vec()).unwrap()
                }
            };
            let slow = spawn(ask("/slow"));
            windlass_task::yield_now().await;
            assert_eq!(ask("/").await, "request 2 by HTTP/2.0\n");
            assert!(!slow.is_finished());
            assert_eq!(slow.await.unwrap(), "request 1 by HTTP/2.0\n");
        });
    }
}
