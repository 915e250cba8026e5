//! Large bodies, and peers that do not read.

use core::{
    pin::Pin,
    task::{Context, Poll},
};
use std::{cell::Cell, convert::Infallible, rc::Rc};

use http_body_util::BodyExt as _;
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    service::service_fn,
};
use windlass_http::HttpServer;

use crate::{
    scenarios::Build,
    tools::{BoxError, client, run, start},
};

const CHUNK: usize = 64 << 10;

/// A body of so many chunks, which counts those that were taken.
struct Counted {
    left: usize,
    taken: Rc<Cell<usize>>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.taken.set(self.taken.get() + 1);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; CHUNK])))))
    }
}

/// Sends bodies both ways through an echo, chunk by chunk. The difference between what was sent and
/// what came back is what is on the way, in sockets and buffers.
async fn echo(chunks: usize) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let server = start(HttpServer::new(), service).await;
    let stream = server.connect().await;
    // Small and fixed, so that the bound below does not depend on the kernel's.
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 64 << 10).unwrap();
    let mut sender = client(stream).await;
    let taken = Rc::new(Cell::new(0));
    let body = Counted { left: chunks, taken: Rc::clone(&taken) };
    let request = Request::post("/").header("host", "here").body(body).unwrap();
    let mut response = sender.send_request(request).await.unwrap();
    let (mut received, mut most) = (0, 0);
    while let Some(frame) = response.frame().await {
        let frame = frame.unwrap().into_data().unwrap();
        assert!(frame.iter().all(|byte| *byte == 7));
        received += frame.len();
        most = most.max(taken.get() * CHUNK - received);
    }
    assert_eq!((received, taken.get()), (chunks * CHUNK, chunks));
    // Four socket buffers, of which the kernel may enlarge two, and the buffers of hyper.
    assert!(most < 24 << 20, "{most} bytes were on the way");
    drop((response, sender));
    server.stop().await;
}

fn a_chunked_body_has_back_pressure(build: Build) {
    run(build, echo(1024));
}

/// As above, with a gibibyte.
fn a_chunked_body_of_a_gibibyte_has_back_pressure(build: Build) {
    run(build, echo((1 << 30) / CHUNK));
}

/// A service that does not read the body stops the client, and answers.
fn a_body_that_nobody_reads_stops_the_client(build: Build) {
    run(build, async {
        let service = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new("no".to_owned()))
        });
        let server = start(HttpServer::new(), service).await;
        let taken = Rc::new(Cell::new(0));
        let mut sender = client(server.connect().await).await;
        let body = Counted { left: usize::MAX, taken: Rc::clone(&taken) };
        let request = Request::post("/").header("host", "here").body(body).unwrap();
        // The answer comes, or the reset that follows it.
        if let Ok(response) = sender.send_request(request).await {
            let status = response.status();
            assert_eq!(status.as_u16(), 200);
            if response.headers().get("content-length").is_some() {
                let _ = response.into_body().collect().await;
            }
        }
        drop(sender);
        assert!(taken.get() * CHUNK < 24 << 20, "{} chunks", taken.get());
        server.stop().await;
    });
}

scenarios! {
    a_chunked_body_has_back_pressure,
    #[ignore = "takes some seconds: run it with --ignored"]
    a_chunked_body_of_a_gibibyte_has_back_pressure,
    a_body_that_nobody_reads_stops_the_client,
}
