//! The client as tasks of the server's runtime.

use std::io;
use std::rc::Rc;

use super::case::HttpServer;
use super::message::{REQUEST, Received};
use super::runtime::{HttpRuntime, HttpStream, Serving};
use crate::measured::Error;
use crate::tasks::{Laps, PairsShared, WARM_MESSAGES};

pub(super) async fn run<R: HttpRuntime>(
    server: HttpServer,
    connections: usize,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let each = rounds.div_ceil(connections as u64);
    let shared = Rc::new(PairsShared::new(laps, connections, each * connections as u64));
    let serving = Serving::new();
    let (listener, address) = R::listen().await?;
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        clients.push(R::http(R::connect(address).await?));
        let accepted = R::http(R::accept(&listener).await?);
        R::serve(server, accepted, serving.another())?;
    }
    let requesting: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let shared = Rc::clone(&shared);
            R::spawn(async move {
                if let Err(error) = request_all(client, each, &shared).await {
                    shared.failed(error);
                }
            })
        })
        .collect();
    for task in requesting {
        task.await;
    }
    let served = serving.others_finished().await;
    shared.result()?;
    served
}

async fn request_all(
    mut client: impl HttpStream,
    each: u64,
    shared: &PairsShared,
) -> io::Result<()> {
    let mut received = Received::default();
    requests(&mut client, &mut received, WARM_MESSAGES, None).await?;
    shared.warm().await;
    requests(&mut client, &mut received, each, Some(shared.laps())).await?;
    shared.finished();
    Ok(())
}

#[inline(always)]
async fn requests(
    client: &mut impl HttpStream,
    received: &mut Received,
    count: u64,
    laps: Option<&Laps>,
) -> io::Result<()> {
    let mut lap = laps.map(Laps::lap);
    for _ in 0..count {
        client.write(REQUEST).await?;
        loop {
            let length = client.read(received.room()).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if received.take_response(length)? {
                break;
            }
        }
        if let Some((laps, lap)) = laps.zip(lap.as_mut()) {
            laps.record(lap);
        }
    }
    Ok(())
}
