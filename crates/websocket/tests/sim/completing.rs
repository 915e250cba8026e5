//! A transport that sends by completion, as on a ring: it takes bytes at once, and another task
//! says late that they were sent.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use windlass::sim::Kernel;
use windlass_task::{JoinHandle, net::TcpStream, spawn, time::sleep};
use windlass_websocket::{
    FuturesIo, Transport,
    client::{Runtime, TaskTimer, WindlassTask},
};

type Socket = FuturesIo<TcpStream>;

/// A socket of windlass-task. The seed chooses whether it sends by completion.
pub(crate) struct Completing {
    socket: Rc<RefCell<Socket>>,
    output: Rc<Output>,
    /// How many bytes wait at most.
    room: usize,
    sending: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Output {
    bytes: RefCell<Vec<u8>>,
    error: Cell<Option<io::ErrorKind>>,
    /// The task that sends.
    sender: Cell<Option<Waker>>,
    /// Who waits for room, or until all was sent.
    waiting: Cell<Option<Waker>>,
}

impl Completing {
    pub(crate) fn new(kernel: &Kernel, socket: Socket) -> Self {
        let (socket, output) = (Rc::new(RefCell::new(socket)), Rc::<Output>::default());
        let completes = kernel.choose(2) == 1;
        let of_task = (kernel.clone(), Rc::clone(&socket), Rc::clone(&output));
        let sending = completes.then(|| spawn(send(of_task.0, of_task.1, of_task.2)));
        Self { socket, output, room: 64 << kernel.choose(7), sending }
    }

    /// Ready if at most so many bytes wait. A call that is ready ends the wait of the one before:
    /// its waker is not called any more.
    fn poll_output(&self, context: &Context<'_>, len_max: usize) -> Poll<io::Result<()>> {
        self.output.waiting.set(None);
        if let Some(error) = self.output.error.get() {
            return Poll::Ready(Err(error.into()));
        }
        if self.output.bytes.borrow().len() <= len_max {
            return Poll::Ready(Ok(()));
        }
        self.output.waiting.set(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// Sends what waits. The completion is late, and so is its wake.
async fn send(kernel: Kernel, socket: Rc<RefCell<Socket>>, output: Rc<Output>) {
    let late = async || {
        let longest = if kernel.choose(8) == 0 { 20_000_000 } else { 100_000 };
        sleep(Duration::from_nanos(kernel.choose(longest))).await;
    };
    loop {
        let sent = poll_fn(|context| {
            output.sender.set(Some(context.waker().clone()));
            match &**output.bytes.borrow() {
                [] => Poll::Pending,
                bytes => socket.borrow_mut().poll_write(context, bytes),
            }
        });
        let sent = sent.await;
        late().await;
        match sent {
            Ok(count) => drop(output.bytes.borrow_mut().drain(..count)),
            Err(error) => output.error.set(Some(error.kind())),
        }
        late().await;
        if let Some(waiting) = output.waiting.take() {
            waiting.wake();
        }
        if output.error.get().is_some() {
            return;
        }
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        if let Some(sending) = &self.sending {
            sending.abort();
        }
    }
}

impl Transport for Completing {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.borrow_mut().poll_read(context, buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.sending.is_none() {
            return self.socket.borrow_mut().poll_write(context, bytes);
        }
        ready!(self.poll_output(context, self.room - 1))?;
        let mut output = self.output.bytes.borrow_mut();
        let count = bytes.len().min(self.room - output.len());
        output.extend_from_slice(&bytes[..count]);
        if let Some(sender) = self.output.sender.take() {
            sender.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.sending {
            Some(_) => self.poll_output(context, 0),
            None => self.socket.borrow_mut().poll_flush(context),
        }
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        self.socket.borrow_mut().poll_shutdown(context)
    }
}

/// The sockets of a client.
#[derive(Clone)]
pub(crate) struct Sockets(pub(crate) Kernel);

type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;

impl Runtime for Sockets {
    type Stream = Completing;
    type Timer = TaskTimer;
    type Resolving = Boxed<Vec<SocketAddr>>;
    type Connecting = Boxed<Completing>;

    fn timer(&self) -> TaskTimer {
        TaskTimer::new()
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolving {
        WindlassTask.resolve(host, port)
    }

    fn connect(&self, address: SocketAddr) -> Self::Connecting {
        let (kernel, connecting) = (self.0.clone(), WindlassTask.connect(address));
        Box::pin(async move { Ok(Completing::new(&kernel, connecting.await?)) })
    }
}
