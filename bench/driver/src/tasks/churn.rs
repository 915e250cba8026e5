//! Connections that are opened and closed.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::laps::Laps;
use super::message::forget_on_close;
use super::runtime::{Runtime, Stream};
use crate::measured::Error;

/// Connections before the clock starts.
const WARM_CONNECTIONS: u64 = 64;

pub(super) async fn run<R: Runtime>(
    parallel: usize,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let (listener, address) = R::listen().await?;
    let listener = Rc::new(listener);
    open_and_close::<R>(&listener, address, parallel, WARM_CONNECTIONS).await?;
    laps.start();
    open_and_close::<R>(&listener, address, parallel, rounds).await?;
    laps.stop(rounds);
    Ok(())
}

/// Opens this number of connections, at most `parallel` at once.
async fn open_and_close<R: Runtime>(
    listener: &Rc<R::Listener>,
    address: SocketAddr,
    parallel: usize,
    count: u64,
) -> Result<(), Error> {
    let error = Rc::new(RefCell::new(None));
    let accepting = R::spawn(accept_all::<R>(Rc::clone(listener), count, Rc::clone(&error)));
    let left = Rc::new(Cell::new(count));
    let clients: Vec<_> = (0..parallel)
        .map(|_| R::spawn(connect_all::<R>(address, Rc::clone(&left), Rc::clone(&error))))
        .collect();
    for client in clients {
        client.await;
    }
    if let Some(error) = error.take() {
        return Err(error);
    }
    accepting.await;
    Ok(())
}

type FirstError = Rc<RefCell<Option<Error>>>;

async fn accept_all<R: Runtime>(listener: Rc<R::Listener>, count: u64, error: FirstError) {
    for _ in 0..count {
        match R::accept(&listener).await {
            Ok(stream) => R::detach(serve_one(stream, Rc::clone(&error))),
            Err(failed) => return fail(&error, failed),
        }
    }
}

async fn serve_one<S: Stream>(mut stream: S, error: FirstError) {
    let echoed = async {
        let number = stream.receive().await?;
        stream.send(number.ok_or(io::ErrorKind::UnexpectedEof)?).await
    };
    if let Err(failed) = echoed.await {
        fail(&error, failed);
    }
}

async fn connect_all<R: Runtime>(address: SocketAddr, left: Rc<Cell<u64>>, error: FirstError) {
    while left.get() > 0 && error.borrow().is_none() {
        left.set(left.get() - 1);
        if let Err(failed) = connect_one::<R>(address, left.get()).await {
            fail(&error, failed);
        }
    }
}

async fn connect_one<R: Runtime>(address: SocketAddr, number: u64) -> io::Result<()> {
    let mut stream = R::connect(address).await?;
    forget_on_close(stream.descriptor())?;
    stream.send(number).await?;
    match stream.receive().await? {
        Some(echoed) if echoed == number => Ok(()),
        _ => Err(io::Error::other("another message came back")),
    }
}

fn fail(error: &RefCell<Option<Error>>, failed: io::Error) {
    error.borrow_mut().get_or_insert(failed.into());
}
