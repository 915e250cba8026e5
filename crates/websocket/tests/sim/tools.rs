//! What the tests share.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    rc::Rc,
    time::Duration,
};

use windlass::{
    Reactor,
    sim::{Kernel, Running, Sim},
};
use windlass_task::{Executor, net::TcpListener, spawn, time::timeout, yield_now};
use windlass_testkit::faults;
use windlass_websocket::{
    Answer, Config, FuturesIo, Message, Timed, WebSocket,
    client::{Client, ClientSocket, TaskTimer},
};

use crate::completing::{Completing, Sockets};

pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(5);
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Within this time a session notices that its peer is gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Within this time a client has ended, also if its connections are lost again and again.
const LONGEST: Duration = Duration::from_secs(3600);

pub(crate) type ServerSocket = WebSocket<Timed<Completing, TaskTimer>>;

/// The system's random numbers would make a seed mean another run each time.
pub(crate) fn config() -> Config {
    thread_local!(static STATE: Cell<u8> = const { Cell::new(0) });
    let config = Config::new().ping_interval(PING_INTERVAL).answer_timeout(ANSWER_TIMEOUT);
    STATE.set(0);
    config.entropy(|bytes| {
        for byte in bytes {
            STATE.set(STATE.get().wrapping_mul(109).wrapping_add(89));
            *byte = STATE.get();
        }
    })
}

/// An executor at the host 10.0.0.`last`.
pub(crate) fn executor(sim: &Sim, last: u8) -> Executor {
    let host = sim.host([10, 0, 0, last].into());
    faults::again(|| Executor::builder().reactor(Reactor::builder().sim(&host)).build())
}

/// A message that says whose it is: text and binary in turns.
pub(crate) fn message(of: (u8, usize), place: usize, len: usize) -> Message {
    let start = format!("{of:?} {place} ");
    let text: String = start.chars().cycle().take(start.len() + len).collect();
    if place % 2 == 0 { text.into() } else { text.into_bytes().into() }
}

/// The result of a future, unless it is dropped before.
pub(crate) async fn briefly<F: Future>(kernel: &Kernel, future: F) -> Option<F::Output> {
    timeout(Duration::from_nanos(kernel.choose(200_000)), future).await.ok()
}

/// The sessions of a server.
#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) open: Cell<usize>,
    panics: Cell<usize>,
}

impl Sessions {
    /// All sessions end some time after their clients.
    pub(crate) fn check(&self, sim: &Sim) {
        sim.run_for(PATIENCE).unwrap();
        assert_eq!(self.panics.get(), 0, "a session of the server has panicked");
        assert_eq!(self.open.get(), 0, "sessions of the server outlive their clients");
    }
}

/// A session that runs. Nobody else would hear of its panic.
struct Session(Rc<Sessions>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.panics.set(self.0.panics.get() + usize::from(std::thread::panicking()));
    }
}

/// A server at 10.0.0.2, which passes the sockets to `serve` with the paths of their requests.
pub(crate) fn start_server<F: Future<Output = ()> + 'static>(
    sim: &Sim,
    config: Config,
    serve: impl Fn(ServerSocket, String) -> F + 'static,
) -> Rc<Sessions> {
    let (sessions, serve) = (Rc::<Sessions>::default(), Rc::new(serve));
    let (all, kernel) = (Rc::clone(&sessions), sim.kernel().clone());
    executor(sim, 2).simulate(sim, async move {
        let listener = again(|| TcpListener::bind("10.0.0.2:80")).await;
        loop {
            let (stream, _) = again(|| listener.accept()).await;
            let (serve, config, kernel) = (Rc::clone(&serve), config.clone(), kernel.clone());
            all.open.set(all.open.get() + 1);
            let session = Session(Rc::clone(&all));
            spawn(async move {
                let _session = session;
                let path = RefCell::default();
                let stream =
                    Timed::new(Completing::new(&kernel, FuturesIo::new(stream)), TaskTimer::new());
                let accepting = WebSocket::accept_with(stream, &config, |request| {
                    path.replace(request.request().path().to_owned());
                    Answer::accept()
                });
                if let Ok(Ok(socket)) = timeout(PATIENCE, accepting).await {
                    serve(socket, path.into_inner()).await;
                }
            })
            .detach();
        }
    });
    sessions
}

/// A client at 10.0.0.3. The test ends with it.
pub(crate) fn run_client(sim: &Sim, client: impl Future<Output = ()> + 'static) -> Running {
    let running = executor(sim, 3).simulate(sim, async {
        timeout(LONGEST, client).await.expect("the client waits, and nobody wakes it");
    });
    sim.run_until(|| running.has_ended()).unwrap();
    running
}

/// Connects to a path of the server, with the number of the attempt appended, until it succeeds.
pub(crate) async fn connect(
    kernel: &Kernel,
    path: &str,
    config: &Config,
) -> (ClientSocket<Sockets>, String) {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let path = format!("{path}/{attempt}");
        let client = Client::new(&format!("ws://10.0.0.2{path}")).config(config.clone());
        match client.connect_on(Sockets(kernel.clone())).await {
            Ok(socket) => return (socket, path),
            Err(_) => yield_now().await,
        }
    }
}

/// Repeats what a fault may strike.
async fn again<T, E, F: Future<Output = Result<T, E>>>(mut call: impl FnMut() -> F) -> T {
    loop {
        match call().await {
            Ok(made) => return made,
            Err(_) => yield_now().await,
        }
    }
}
